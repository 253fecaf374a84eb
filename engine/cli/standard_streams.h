// The standard streams of a program, secured so that no output is lost silently. Private to engine/cli.
//
// Closed   descriptors 0 to 2 that are closed at the start are opened on /dev/null: otherwise a file of the run could
//          become one of them, and get output meant for the terminal.
// Signals  SIGPIPE and SIGXFSZ are ignored: a closed pipe and a file-size limit are errors with a text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace loom::cli {

// Must run first in a program.
void secure_standard_streams();

// Prints it. A reader that closes the pipe early is no error: `shardloom train --help | head`.
void print_help(std::string_view text);

// Must run last: flushes standard output; "standard output: cannot write: No space left on device; ..." if some
// output was lost.
std::optional<std::string> standard_output_problem();

}  // namespace loom::cli
