// The inspect command: contents and integrity of a checkpoint, or differences of two. Private to engine/cli.
//
// Errors   ConfigError for a path that is not a checkpoint.
#pragma once

#include <ostream>

#include "engine/cli/words/convert_arguments.h"

namespace loom::cli {

// The exit status: 0, or kExitFailed if something is damaged, or different.
int run_inspect(const InspectArguments& arguments, std::ostream& out);

}  // namespace loom::cli
