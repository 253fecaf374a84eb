// Checks of the keys for swapped activations, and what one key sets of another. Private to engine/cli.
//
// Errors   ConfigError in one line: flag, value, what is allowed.
#pragma once

#include "engine/cli/words/arguments.h"
#include "engine/cli/words/flags.h"

namespace loom::cli {

// --recompute-num-layers beside --swap-attention alone: MLPs that are computed again. Before settle_recompute().
void settle_swapped_recompute(train::ParallelOptions& parallel, offload::SwapOptions& swap);
// After the kernels are settled. A plan knows the memory of its device; a run has to be told.
void settle_swap(const Command& app, bool plans, job::Job& values);
// No search beside the choice of tensors, which is one.
void check_swap_search(const PlanArguments& values);

}  // namespace loom::cli
