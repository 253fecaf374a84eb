// `shardloom chat`. Private to engine.
//
// Lines     each is a turn; an empty one is none. "/" begins a command: /clear, /save FILE, /help, /exit; "//" begins a
//           text with one.
// Terminal  standard input and output are one: there is a prompt, and Ctrl-C stops the answer, a second one before the
//           next line the program.
// Pipe      else: standard output gets the answers, each with an end of line, and nothing more.
// Escaped   control characters of answers, where standard output is a terminal (terminal_text.h).
// Refused   a line that cannot be answered, or a command that fails, is said on standard error, and the chat goes on.
//           From a pipe, the program then ends with status 1.
// Errors    ConfigError for the model's files and the flags; Error when a model has diverged.
// Threads   called once by the process's main thread.
#pragma once

#include <ostream>

#include "engine/talk/options.h"

namespace loom::talk {

// Reads standard input to its end or /exit.
void run_chat(const ChatArguments& arguments, std::ostream& out);

}  // namespace loom::talk
