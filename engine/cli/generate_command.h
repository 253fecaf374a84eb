// `shardloom generate`. Private to engine/cli.
//
// Text     where the model's folder has a tokenizer.json, prompts and texts are its; else, and with --bytes-as-tokens,
//          a token is a byte.
// Ends     at an end token of the tokenizer's files, of config.json where these name none, or of --add-eos-token; at a
//          stop word; after --max-new-tokens or at --max-length. Bytes have no end token.
// Order    everything that can be wrong with the user's files and prompts is found before a word is printed.
// Errors   ConfigError for the user's input.
// Threads  called once by the process's main thread.
#pragma once

#include <ostream>

#include "engine/cli/arguments.h"

namespace loom::cli {

// One prompt: the prompt and, as they come, its tokens' text. Several: each whole, under a line with its number.
void run_generate(const GenerateArguments& arguments, std::ostream& out);

}  // namespace loom::cli
