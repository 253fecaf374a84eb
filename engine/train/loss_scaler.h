// LossScaler: the factor on the loss of an fp16 run that keeps small gradients from rounding to 0.
//
// Constant  with `constant`: it never changes.
// Dynamic   otherwise, as Megatron's DynamicGradScaler: an update whose gradients overflowed (NaN or Inf on any rank)
//           is skipped and takes one from the hysteresis; the one that takes the last, and each further one, halves
//           the scale, down to `minimum`. `window` updates in a row without overflow double it and give the whole
//           hysteresis back.
// State     a value; a scaler that gets the state of another one continues as that one would.
// Threads   one at a time. Every rank has its own scaler and updates it alike, so all are equal.
// Source    NVIDIA/Megatron-LM, megatron/core/optimizer/grad_scaler.py.
#pragma once

#include <cstdint>
#include <optional>

namespace loom::train {

struct LossScaleOptions {
  std::optional<double> constant = {};  // above 0; none: dynamic
  double initial = 4294967296.0;        // 2^32
  double minimum = 1.0;                 // above 0, at most `initial`
  std::int64_t window = 1000;           // at least 1
  int hysteresis = 2;                   // at least 1
};

// Megatron's names.
struct LossScaleState {
  double scale = 1.0;
  std::int64_t growth_tracker = 0;      // updates in a row without overflow
  std::int64_t hysteresis_tracker = 0;  // overflows to come before the scale falls; 0 or less: none

  bool operator==(const LossScaleState&) const = default;
};

class LossScaler {
 public:
  explicit LossScaler(const LossScaleOptions& options);

  double scale() const { return state_.scale; }
  // Called after every update that was made (false) or skipped (true).
  void update(bool overflowed);
  // Whether an overflow cannot lower the scale any more: it is constant, or at its minimum without hysteresis left.
  bool at_its_end() const;

  bool dynamic() const { return !options_.constant; }
  const LossScaleState& state() const { return state_; }
  // ConfigError for a scale that is not above 0 or not finite, or a negative growth tracker.
  void set_state(const LossScaleState& state);

 private:
  LossScaleOptions options_;
  LossScaleState state_;
};

}  // namespace loom::train
