#include "engine/train/exit_decision.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fmt/core.h>

namespace loom::train {
namespace {

bool divides(std::int64_t interval, std::int64_t iteration) { return interval > 0 && iteration % interval == 0; }

ExitDecision end_by_signal(const EndOptions& options, int signal) {
  if (signal != SIGINT && options.exit_signal_handler) {
    return {.reason = EndReason::kSignal,
            .signal = 0,
            .text = fmt::format("exiting program after receiving SIG{}.", ::sigabbrev_np(signal))};
  }
  return {.reason = EndReason::kSignal, .signal = signal, .text = {}};
}

// What ends the run, but for the last step and a signal.
ExitDecision end_by_rule(const EndOptions& options, const StepOutcome& outcome) {
  if (outcome.time_is_up) {
    // Where another rank's clock was ahead, this one's may not be there yet.
    const double minutes = std::max(outcome.elapsed_minutes, options.exit_duration_in_mins);
    return {.reason = EndReason::kDuration,
            .signal = 0,
            .text = fmt::format("exiting program after {:.2f} minutes", minutes)};
  }
  if (divides(options.exit_interval, outcome.iteration)) {
    return {.reason = EndReason::kInterval,
            .signal = 0,
            .text = fmt::format("exiting program at iteration {}", outcome.iteration)};
  }
  return {};
}

ExitDecision end_of(const EndOptions& options, const StepOutcome& outcome) {
  if (outcome.iteration >= outcome.train_iters) return {.reason = EndReason::kLastStep, .signal = 0, .text = {}};
  if (outcome.signal != 0) return end_by_signal(options, outcome.signal);
  return end_by_rule(options, outcome);
}

}  // namespace

ExitDecision decide_exit(const EndOptions& options, const StepOutcome& outcome) {
  ExitDecision decision = end_of(options, outcome);
  const bool is_due = decision.exit() || divides(options.save_interval, outcome.iteration) ||
                      divides(options.save_epoch_iters, outcome.iteration);
  decision.save = is_due && !outcome.just_saved;
  return decision;
}

bool time_is_up(const EndOptions& options, double elapsed_minutes) {
  return options.exit_duration_in_mins > 0 && elapsed_minutes > options.exit_duration_in_mins;
}

}  // namespace loom::train
