// `shardloom explain TEXT|FILE [job]`: what the error texts of a run mean, and where in the job's step they arose.
//
// Snapshot `explain --snapshot FILE job`: what a memory snapshot of a run holds beside the plan of its job.
// Source   a file that exists, "-" for standard input, else the text itself.
// Prints   a text, and JSON where --json names a file; "-" is standard output, which then has JSON alone.
// Returns  0.
// Errors   ConfigError: neither a file nor a text that is understood; a file without such a text; the job's own errors.
//
// Private to engine/cli.
#pragma once

#include <ostream>

#include "engine/cli/words/arguments.h"

namespace loom::cli {

int run_explain(const ExplainArguments& arguments, std::ostream& out);

}  // namespace loom::cli
