// `shardloom generate`. Private to engine.
//
// Text     words.h. Ends also at a stop word, after --max-new-tokens or at --max-length.
// Ranks    all make the same tokens, and rank 0 prints (decoder_ranks.h).
// Order    every error in the user's files and prompts is found before anything is printed.
// Errors   ConfigError for the user's input.
// Threads  called once by the process's main thread.
#pragma once

#include <ostream>

#include "engine/talk/options.h"

namespace loom::talk {

// One prompt: the prompt and its tokens' text as they arrive. Several: each whole, under a line with its number. If
// standard output is a terminal, control characters are escaped (terminal_text.h).
void run_generate(const GenerateArguments& arguments, std::ostream& out);

}  // namespace loom::talk
