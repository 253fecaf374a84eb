// The reentrant kind: forward without a graph, one node that runs it again and runs backward through it. Private to
// recompute.
#pragma once

#include "recompute/checkpoint.h"

namespace loom::recompute {

// One call of a checkpointed module.
nn::Value run_reentrant(const nn::Module& module, const CheckpointOptions& options, const nn::Module::Run& inner,
                        nn::Args args);

}  // namespace loom::recompute
