// Checks of the keys for optimizer state in host memory (train::HostOptimizerOptions). Private to engine/cli.
#pragma once

#include <string>
#include <vector>

#include "engine/cli/words/arguments.h"
#include "engine/cli/words/command.h"
#include "engine/cli/words/flags.h"
#include "engine/cli/words/foreign_flags.h"

namespace loom::cli {

// The refusal of Megatron's distributed optimizer flag if it has no meaning here. Else empty.
std::vector<std::string> refused_distributed_optimizer(const ForeignFlags& foreign,
                                                       const train::OptimizerOptions& optimizer);

// ConfigError for flags that exclude each other.
void check_host_optimizer(const Command& app, const ForeignFlags& foreign, const job::Job& values);

}  // namespace loom::cli
