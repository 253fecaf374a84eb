// The loop: steps, evaluations between them and at the end, told to observers; when a run saves, and when it ends.
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

// What the loop asks of the world around it. Every rank is given the same ones, though not the same answers.
struct LoopHooks {
  // Saves the state after `iteration`. Collective: all ranks are called after the same iterations. Empty: nothing is
  // saved. What it throws ends the run.
  std::function<void(std::int64_t iteration)> save;
  // The signal that this rank got, or 0 (launch::StopSignals::received). Empty: none.
  std::function<int()> signal;
  // Minutes since the run began, by this rank's clock. Empty: --exit-duration-in-mins is not looked at.
  std::function<double()> elapsed_minutes;
};

// Trains from where the trainer is to the end, evaluating every --eval-interval steps, after the last one, and on the
// test data at the very end; iterations of --iterations-to-skip are passed over, with neither metrics nor evaluation.
// With --skip-train: the two evaluations alone.
//
// Save    after a step, its evaluation and its metrics, where exit_decision.h says so; before the test data.
// Early   the run may end before --train-iters: observers get run_stopped() for run_done(), and no test data is read.
//         A signal leaves out the held-out data of its step too.
// Result  of the last step: why the run ended, the text to print, and the signal for the exit status.
ExitDecision run_steps(Trainer& trainer, const ScheduleOptions& options, const data::DataLoaders& data,
                       std::vector<StepObserver*> observers, const LoopHooks& hooks);

}  // namespace loom::train
