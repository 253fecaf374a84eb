// The loop: runs steps and evaluations, notifies observers, and decides when a run saves and when it ends.
//
// Threads  the rank's host thread; collective.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/train/exit_decision.h"
#include "engine/train/inputs.h"
#include "engine/train/schedule_options.h"
#include "engine/train/step/step_observer.h"
#include "engine/train/trainer.h"

namespace loom::train {

// What the loop needs from its surroundings. Every rank gets the same hooks, but their answers may differ.
struct LoopHooks {
  // Saves the state after `iteration`. Collective: all ranks call it after the same iterations. Empty: nothing is
  // saved. An exception from it ends the run.
  std::function<void(std::int64_t iteration)> save;
  // The signal that this rank received, or 0 (launch::StopSignals::received). Empty: none.
  std::function<int()> signal;
  // Minutes since the run began, by this rank's clock. Empty: --exit-duration-in-mins has no effect.
  std::function<double()> elapsed_minutes;
};

// Trains from the trainer's position to the end, and evaluates every --eval-interval steps, after the last one, and on
// the test data at the end; iterations of --iterations-to-skip are passed over, without metrics or evaluation.
// With --skip-train: the two evaluations alone.
//
// Save    after a step, its evaluation and its metrics, as exit_decision.h decides; before the test data.
// Early   the run may end before --train-iters: observers get run_stopped() instead of run_done(), and no test data is
//         read. A signal also skips the held-out evaluation of its step.
// Result  for the last step: why the run ended, the text to print, and the signal for the exit status.
ExitDecision run_steps(Trainer& trainer, const ScheduleOptions& options, const data::DataLoaders& data,
                       std::vector<StepObserver*> observers, const LoopHooks& hooks);

}  // namespace loom::train
