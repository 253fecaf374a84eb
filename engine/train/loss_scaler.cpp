#include "engine/train/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/core/error.h"

namespace loom::train {
namespace {

constexpr double kGrowth = 2.0;
constexpr double kBackoff = 0.5;
constexpr double kLargest = std::numeric_limits<float>::max();  // the loss that it multiplies is fp32

}  // namespace

LossScaler::LossScaler(const LossScaleOptions& options)
    : options_(options), state_{.scale = options.constant.value_or(options.initial)} {
  if (dynamic()) state_.hysteresis_tracker = options.hysteresis;
}

void LossScaler::update(bool overflowed) {
  if (!dynamic()) return;
  if (overflowed) {
    state_.growth_tracker = 0;
    if (--state_.hysteresis_tracker <= 0) state_.scale = std::max(state_.scale * kBackoff, options_.minimum);
    return;
  }
  if (++state_.growth_tracker < options_.window) return;
  state_.growth_tracker = 0;
  state_.hysteresis_tracker = options_.hysteresis;
  if (state_.scale * kGrowth <= kLargest) state_.scale *= kGrowth;
}

bool LossScaler::at_its_end() const {
  return !dynamic() || (state_.scale <= options_.minimum && state_.hysteresis_tracker <= 1);
}

void LossScaler::set_state(const LossScaleState& state) {
  if (!std::isfinite(state.scale) || state.scale <= 0 || state.growth_tracker < 0) {
    config_error(
        "the loss scaler's state has the scale {} and the growth tracker {}; the scale is a number above 0, the "
        "tracker "
        "at least 0",
        state.scale, state.growth_tracker);
  }
  state_ = state;
}

}  // namespace loom::train
