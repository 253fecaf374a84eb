// Spikes: a loss or gradient norm far above its first values (--check-for-spiky-loss,
// --check-for-large-grads).
//
// Rule      the first 100 finite values fix a maximum of their magnitudes and are never spikes; from then on a value of
//           at least 10 times that maximum is one. A value that is not finite, and a step without an update, does not
//           count and is no spike.
// Warning   one per spike, in the log; the run continues. Megatron-LM judges the loss of every micro-batch of every
//           rank, and may end the run; here it is the mean of the step.
// State     a value: a resumed run that gets it continues as if it had not stopped.
// Threads   the rank's host thread. One rank of the job warns.
// Source    Megatron-LM core_v0.12.1, megatron/core/rerun_state_machine.py, is_unexpectedly_large.
#pragma once

#include <cstdint>

#include "engine/train/step/step_observer.h"

namespace loom::log {

inline constexpr std::int64_t kSpikeSamples = 100;
inline constexpr double kSpikeFactor = 10.0;

struct SpikeState {
  std::int64_t samples = 0;  // finite values seen, at most kSpikeSamples
  double maximum = 0.0;      // of their magnitudes

  bool operator==(const SpikeState&) const = default;
};

// Whether `value`, the next one, is a spike.
bool is_spike(SpikeState& state, double value);

struct SpikeStates {
  SpikeState loss;
  SpikeState grad_norm;

  bool operator==(const SpikeStates&) const = default;
};

class SpikeWatch final : public train::StepObserver {
 public:
  SpikeWatch(bool loss, bool grad_norm) : loss_(loss), grad_norm_(grad_norm) {}

  void step_done(const train::StepMetrics& metrics) override;

  const SpikeStates& state() const { return states_; }
  void set_state(const SpikeStates& states) { states_ = states; }

 private:
  const bool loss_;       // whether it is watched
  const bool grad_norm_;  // whether it is watched
  SpikeStates states_;
};

}  // namespace loom::log
