// The inspect command: what a checkpoint holds, whether it is whole, how two differ. Private to engine/cli.
//
// Errors   ConfigError for a path that is no checkpoint.
#pragma once

#include <ostream>

#include "engine/cli/words/arguments.h"

namespace loom::cli {

// The exit status: 0, or kExitFailed where something is damaged, or different.
int run_inspect(const InspectArguments& arguments, std::ostream& out);

}  // namespace loom::cli
