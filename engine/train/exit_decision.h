// Decides after a step whether a run saves, and whether it ends. A function of values that are the same on
// every rank, so that all ranks do the same.
//
// Order    as in Megatron-LM; the first case that applies decides:
//          1. the last step        save, end.
//          2. a signal             save, end. With exit_signal_handler a regular end, except for SIGINT.
//          3. save_interval/epochs save.
//          4. exit_duration        save unless 3 did, end.
//          5. exit_interval        save unless 3 did, end.
// Agreed   clocks and signals belong to a rank. The input is what the ranks agreed on (Trainer::agreed_stop).
// Units    iterations are optimizer steps, counted from 1 over all runs of a job; minutes since the run began.
// Source   Megatron-LM, checkpoint_and_decide_exit.
#pragma once

#include <cstdint>
#include <string>

namespace loom::train {

// When a run saves and ends, besides after --train-iters. 0: off.
struct EndOptions {
  std::int64_t save_interval = 0;     // save after every iteration that this divides
  std::int64_t save_epochs = 0;       // save after so many epochs of the training data ...
  std::int64_t save_epoch_iters = 0;  // ... which are so many iterations; filled in
  std::int64_t exit_interval = 0;     // end after the first iteration that this divides
  double exit_duration_in_mins = 0;   // end after the first iteration later than this
  bool exit_signal_handler = false;   // a signal other than SIGINT: save and end with status 0
};

// Why a run ends; kLastStep is the only end that is not early.
enum class EndReason : std::uint8_t { kGoesOn, kLastStep, kSignal, kDuration, kInterval };

struct StepOutcome {
  std::int64_t iteration = 0;  // the one that is done
  std::int64_t train_iters = 0;
  int signal = 0;              // one of launch::kStopSignals that any rank received; 0: none
  bool time_is_up = false;     // on any rank
  double elapsed_minutes = 0;  // on this rank: for the text only
  bool just_saved = false;     // the iteration is saved already
};

struct ExitDecision {
  bool save = false;
  EndReason reason = EndReason::kGoesOn;
  int signal = 0;    // the signal in the exit status; 0 if the end is regular
  std::string text;  // "exiting program at iteration 5"; empty if the run continues, is done, or `signal` is set

  bool exit() const { return reason != EndReason::kGoesOn; }
};

ExitDecision decide_exit(const EndOptions& options, const StepOutcome& outcome);

// Whether this rank's clock has passed the end of the run.
bool time_is_up(const EndOptions& options, double elapsed_minutes);

}  // namespace loom::train
