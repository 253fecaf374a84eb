// `shardloom compare A B`: two runs, step by step.
//
// Says     of loss and gradient norm: in how many of the steps in common they differ, the first such step with both
//          values, the largest and the mean relative error (engine/observe/run_curves.h).
// Returns  0 where all steps in common are the same, 1 at a difference.
// Errors   ConfigError for what cannot be read, and for runs without a step in common.
// Threads  one thread.
#pragma once

#include <ostream>

#include "engine/cli/words/arguments.h"

namespace loom::cli {

int run_compare(const CompareArguments& arguments, std::ostream& out);

}  // namespace loom::cli
