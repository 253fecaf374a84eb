// Checks of the keys for the device's memory. Private to engine/cli.
#pragma once

#include "engine/cli/words/arguments.h"
#include "engine/cli/words/flags.h"

namespace loom::cli {

// Takes the allocator's options from the environment if no flag has given them. ConfigError names the variable.
void settle_allocator(const launch::Start& start, train::MemoryOptions& memory);
// ConfigError for keys that exclude each other.
void check_memory(const job::Job& arguments);
// The same for a plan that searches.
void check_memory_search(const PlanArguments& arguments);

}  // namespace loom::cli
