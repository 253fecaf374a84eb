// `shardloom lint FILE... [--model-config FILE] [--world-size N] [--format text|json|sarif]`: what is wrong with
// configuration files of any dialect, without training.
//
// Returns  0; 1 with an error in any of the files.
// Errors   ConfigError for words that are no files and no flags of lint.
#pragma once

#include <ostream>

#include "engine/cli/words/arguments.h"

namespace loom::cli {

int run_lint(const LintArguments& arguments, std::ostream& out);

}  // namespace loom::cli
