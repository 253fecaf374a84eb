// Checks of the keys for cores and host memory of this machine. Private to engine/cli.
#pragma once

#include "engine/cli/words/flags.h"
#include "engine/cli/words/training_flags.h"
#include "engine/launch/start.h"

namespace loom::cli {

// Runs after the parse. A plan binds nothing: it does not read CPU_AFFINITY_CONF, and only checks --bind-core.
void settle_host(bool planned, const launch::Start& start, launch::LaunchOptions& launch);

}  // namespace loom::cli
