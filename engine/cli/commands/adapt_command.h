// `shardloom adapt`: a launch script of another tool as one that starts shardloom train. Private to engine/cli.
#pragma once

#include <ostream>

#include "engine/cli/words/arguments.h"

namespace loom::cli {

// Writes the script to `out` and a line for each change to `said`. Errors as dialects::adapt_script()'s.
void run_adapt(const AdaptArguments& arguments, std::ostream& out, std::ostream& said);

}  // namespace loom::cli
