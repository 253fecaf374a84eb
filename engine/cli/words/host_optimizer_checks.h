// Checks of the keys for optimizer state in host memory (train::HostOptimizerOptions). Private to engine/cli.
#pragma once

#include "engine/cli/words/arguments.h"
#include "engine/cli/words/command.h"
#include "engine/cli/words/flags.h"

namespace loom::cli {

// Flags that do not fit each other: ConfigError.
void check_host_optimizer(const Command& app, const job::Job& values);

}  // namespace loom::cli
