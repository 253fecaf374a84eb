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
// test data at the very end. With --skip-train: the two evaluations alone.
void run_steps(Trainer& trainer, const TrainerOptions& options, const data::DataLoaders& data,
               std::vector<StepObserver*> observers);

}  // namespace loom::train
