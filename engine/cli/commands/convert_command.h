// The convert command: a conversion, with a bar on a terminal and a line at its end. Private to engine/cli.
//
// Stopped  by one of launch::kStopSignals between two pieces: its files are removed.
// Errors   ConfigError for the user's input; launch::Interrupted.
#pragma once

#include <ostream>

#include "engine/cli/words/convert_arguments.h"

namespace loom::cli {

void run_convert(const ConvertArguments& arguments, std::ostream& out);

}  // namespace loom::cli
