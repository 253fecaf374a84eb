// `shardloom config FILE [--section.key value ...] [--to DIALECT]`: what a configuration file of any dialect says here,
// and where each value comes from; with --to, the same job as a file of another dialect.
//
// Returns  0: a key that is missing, and a class that is not built, are shown; 1: keys are refused, and all are named.
// Errors   ConfigError for a file that cannot be read, and for words that are no flags.
#pragma once

#include <ostream>

#include "engine/cli/words/arguments.h"

namespace loom::cli {

int run_config(const ConfigArguments& arguments, std::ostream& out);

}  // namespace loom::cli
