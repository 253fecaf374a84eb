#include "engine/log/spikes.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "engine/core/log.h"

namespace loom::log {
namespace {

void warn_of_spike(const train::StepMetrics& metrics, std::string_view what, double value, const SpikeState& state) {
  log_warning(
      "iteration {}: the {} is {}, at least {:g} times the largest of the first {}, {}; training goes on: look at the "
      "data of this iteration, or lower --lr or --clip-grad",
      metrics.step, what, value, kSpikeFactor, kSpikeSamples, state.maximum);
}

}  // namespace

bool is_spike(SpikeState& state, double value) {
  if (!std::isfinite(value)) return false;
  const double magnitude = std::abs(value);
  if (state.samples == kSpikeSamples) return magnitude > 0 && magnitude >= kSpikeFactor * state.maximum;
  ++state.samples;
  state.maximum = std::max(state.maximum, magnitude);
  return false;
}

void SpikeWatch::step_done(const train::StepMetrics& metrics) {
  if (metrics.skipped) return;
  if (loss_ && is_spike(states_.loss, metrics.loss)) warn_of_spike(metrics, "loss", metrics.loss, states_.loss);
  if (grad_norm_ && is_spike(states_.grad_norm, metrics.grad_norm)) {
    warn_of_spike(metrics, "gradient norm", metrics.grad_norm, states_.grad_norm);
  }
}

}  // namespace loom::log
