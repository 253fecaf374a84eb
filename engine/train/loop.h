// The loop: steps, evaluations between them and at the end, told to observers.
//
// Threads  the rank's host thread; collective.
#pragma once

#include <vector>

#include "engine/train/arguments.h"
#include "engine/train/inputs.h"
#include "engine/train/step_observer.h"
#include "engine/train/trainer.h"

namespace loom::train {

// Trains from where the trainer is to the end, evaluating every --eval-interval steps, after the last one, and on the
// test data at the very end; iterations of --iterations-to-skip are passed over, with neither metrics nor evaluation.
// With --skip-train: the two evaluations alone. Returns 0; or the signal on which the ranks agreed to stop
// (Trainer::set_stop_request), after a step that is not the last: its metrics are told, and no evaluation follows.
int run_steps(Trainer& trainer, const TrainerOptions& options, const data::DataLoaders& data,
              std::vector<StepObserver*> observers);

}  // namespace loom::train
