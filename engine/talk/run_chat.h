// `shardloom chat`. Private to engine.
//
// Lines     each is a turn; an empty one is none. "/" begins a command: /clear, /save FILE, /help, /exit; "//" begins a
//           text with "/".
// Terminal  standard input and output are a terminal: there is a prompt, and Ctrl-C stops the answer, a second one
//           before the next line the program.
// Pipe      otherwise: standard output gets the answers, each with an end of line, and nothing else.
// Escaped   control characters of answers, if standard output is a terminal (terminal_text.h).
// Refused   a line without an answer, or a failed command, is reported on standard error, and the chat continues.
//           From a pipe, the program then ends with status 1.
// Errors    ConfigError for the model's files and the flags; Error if a model has diverged.
// Threads   called once by the process's main thread.
#pragma once

#include <ostream>

#include "engine/talk/options.h"

namespace loom::talk {

// Reads standard input to its end or /exit.
void run_chat(const ChatArguments& arguments, std::ostream& out);

}  // namespace loom::talk
