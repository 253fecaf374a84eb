// `shardloom merge`. Private to engine/cli.
#pragma once

#include <ostream>

#include "engine/cli/words/convert_arguments.h"

namespace loom::cli {

// Merges with progress on `out`; throws the errors of merge(), and launch::Interrupted for launch::kStopSignals.
void run_merge(const MergeArguments& arguments, std::ostream& out);

}  // namespace loom::cli
