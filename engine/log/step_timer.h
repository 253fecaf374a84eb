// StepTimer: the duration of the steps of an interval, each from its begin to its end: evaluation and saving between
// steps do not count, as in Megatron-LM's interval-time.
//
// Threads  the rank's host thread.
#pragma once

#include <utility>

#include "engine/log/clock.h"

namespace loom::log {

class StepTimer {
 public:
  explicit StepTimer(MonotonicClock clock) : clock_(std::move(clock)) {}

  void begin() { begun_ns_ = clock_(); }
  void end() {
    elapsed_ns_ += clock_() - begun_ns_;
    ++steps_;
  }
  // The average of the steps since the last call. 0 if there were none.
  double take_mean_s() {
    const double mean = steps_ == 0 ? 0.0 : static_cast<double>(elapsed_ns_) * 1e-9 / static_cast<double>(steps_);
    elapsed_ns_ = 0;
    steps_ = 0;
    return mean;
  }

 private:
  const MonotonicClock clock_;
  std::int64_t begun_ns_ = 0;
  std::int64_t elapsed_ns_ = 0;
  std::int64_t steps_ = 0;
};

}  // namespace loom::log
