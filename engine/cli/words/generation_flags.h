// The flags of `generate` and `chat`: declarations, checks, and defaults. Private to engine/cli.
//
// Errors   ConfigError in one line: flag, value, allowed values.
#pragma once

#include "engine/cli/words/command.h"
#include "engine/cli/words/flags.h"
#include "engine/launch/start.h"
#include "engine/talk/options.h"

namespace loom::cli {

void add_generate(Flags& flags, talk::GenerateArguments& values);
void add_chat(Flags& flags, talk::ChatArguments& values);

// After the parse of `app`.
void settle(const Command& app, const launch::Start& start, talk::GenerateArguments& values);
void settle(const Command& app, const launch::Start& start, talk::ChatArguments& values);

}  // namespace loom::cli
