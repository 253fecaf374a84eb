// Checks of the keys for optimizer state in host memory (train::HostOptimizerOptions). Private to engine/cli.
#pragma once

#include <string>
#include <vector>

#include "engine/cli/words/arguments.h"
#include "engine/cli/words/command.h"
#include "engine/cli/words/flags.h"

namespace loom::cli {

// Where Megatron's distributed optimizer has no meaning here: what to say of the flag. Else empty.
std::vector<std::string> refused_distributed_optimizer(const job::Job& values);

// Flags that do not fit each other: ConfigError.
void check_host_optimizer(const Command& app, const job::Job& values);

}  // namespace loom::cli
