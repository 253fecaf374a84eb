// Checks of the keys for swapped activations, and the keys that follow from others. Private to engine/cli.
//
// Errors   ConfigError in one line: flag, value, allowed values.
#pragma once

#include "engine/cli/words/arguments.h"
#include "engine/cli/words/flags.h"

namespace loom::cli {

// --recompute-num-layers beside --swap-attention alone: recomputes MLPs. Before settle_recompute().
void settle_swapped_recompute(train::ParallelOptions& parallel, offload::SwapOptions& swap);
// After the kernels are settled.
void settle_swap(job::Job& values);
// Refuses a search beside the choice of tensors, which is itself a search.
void check_swap_search(const PlanArguments& values);

}  // namespace loom::cli
