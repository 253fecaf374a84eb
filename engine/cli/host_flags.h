// Flags of where the ranks of this machine run and keep their host memory, and what their values have to be. Private to
// engine/cli.
#pragma once

#include "engine/cli/flags.h"
#include "engine/cli/training_flags.h"
#include "engine/launch/launch_context.h"

namespace loom::cli {

void add_host(Flags& flags, Program program, ProgramArguments& values);
// After the parse. A plan binds nothing: CPU_AFFINITY_CONF is not read, --bind-core is checked and left.
void settle_host(bool planned, const launch::LaunchContext& context, ProgramArguments& values);

}  // namespace loom::cli
