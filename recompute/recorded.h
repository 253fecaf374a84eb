// The kind that is not reentrant: the graph is recorded in forward, and its saved tensors are recomputed on
// request. Private to recompute.
#pragma once

#include "recompute/checkpoint.h"

namespace loom::recompute {

// One call of a checkpointed module.
nn::Value run_recorded(const CheckpointOptions& options, const nn::Module::Run& inner, nn::Args args);

}  // namespace loom::recompute
