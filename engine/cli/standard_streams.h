// The standard streams of a program, so that nothing it prints is lost without a word. Private to engine/cli.
//
// Closed   descriptors 0 to 2 that are closed at the start are opened on /dev/null: no file of the run can become one
//          of them, and get what is meant for the terminal.
// Signals  SIGPIPE and SIGXFSZ are ignored: a closed pipe and a file-size limit are errors with a text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace loom::cli {

// First of all in a program.
void secure_standard_streams();

// Prints it. A reader that has closed the pipe has read enough of it: `shardloom train --help | head`.
void print_help(std::string_view text);

// Last of all: flushes standard output; "standard output: cannot write: No space left on device; ..." where something
// printed was lost.
std::optional<std::string> standard_output_problem();

}  // namespace loom::cli
