// sharded_parameters(): how FSDP holds the parameters of a module, for optimizers that need whole matrices.
//
// Threads  the rank's host thread.
#pragma once

#include "engine/nn/module.h"
#include "engine/nn/optim/muon.h"

namespace loom::sharding {

// Of `root` and all modules in it. Empty where nothing is sharded.
nn::ShardedParameters sharded_parameters(nn::Module& root);

}  // namespace loom::sharding
