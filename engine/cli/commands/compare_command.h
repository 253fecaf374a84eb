// `shardloom compare A B`: compares two runs, step by step.
//
// Prints   for loss and gradient norm: in how many common steps they differ, the first such step with both
//          values, the largest and the mean relative error (engine/observe/run_curves.h).
// Returns  0 if all common steps are the same, 1 at a difference.
// Errors   ConfigError for unreadable inputs, and for runs without a common step.
// Threads  one thread.
#pragma once

#include <ostream>

#include "engine/cli/words/arguments.h"

namespace loom::cli {

int run_compare(const CompareArguments& arguments, std::ostream& out);

}  // namespace loom::cli
