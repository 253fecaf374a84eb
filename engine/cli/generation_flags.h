// The flags of `generate` and `chat`: declared, checked, and filled in where they are not given. Private to engine/cli.
//
// Errors   ConfigError in one line: flag, value, what is allowed.
#pragma once

#include "engine/cli/arguments.h"
#include "engine/cli/flags.h"

namespace loom::cli {

void add_generate(Flags& flags, GenerateArguments& values);
void add_chat(Flags& flags, ChatArguments& values);

// After the parse of `app`.
void settle(const Command& app, const launch::Start& start, GenerateArguments& values);
void settle(const Command& app, const launch::Start& start, ChatArguments& values);

}  // namespace loom::cli
