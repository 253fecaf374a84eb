// The flags that say what the device's memory is and how it is used. Private to engine/cli.
#pragma once

#include "engine/cli/arguments.h"
#include "engine/cli/flags.h"

namespace loom::cli {

void add_memory(Flags& flags, ProgramArguments& arguments);
// What of them does not go together, as ConfigError.
void check_memory(const ProgramArguments& arguments);
// No search beside a choice, which is one.
void check_memory_search(const PlanArguments& arguments);

}  // namespace loom::cli
