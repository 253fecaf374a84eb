// The reference model of a preference loss: a second model of the rank, frozen, in shards as the trained one. The
// trainer makes it where PretrainCallbacks::has_reference_model says so; its weights are those that training starts
// from, or those of --ref-model.
//
// Threads  the rank's host thread.
#pragma once

#include "engine/nn/module.h"

namespace loom::train {

// Of the current rank. ConfigError where there is none.
nn::Module& reference_model();

// What the trainer sets; null: none.
void set_reference_model(nn::Module* model);

}  // namespace loom::train
