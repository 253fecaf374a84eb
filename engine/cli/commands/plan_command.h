// The plan command: plans the step of a program (shardloom, or any pretrain program), prints the plan, and
// writes it to files if flags request them. Private to engine/cli.
//
// Devices   --device: find_profile.h.
// Errors    ConfigError for the user's input, with the names of the available profiles.
#pragma once

#include <ostream>

#include "engine/cli/exit_status.h"
#include "engine/cli/words/arguments.h"

namespace loom::cli {

// The exit status: 0, or kExitDoesNotFit.
int run_plan(const PlanArguments& arguments, const train::PretrainCallbacks& callbacks, std::ostream& out);

}  // namespace loom::cli
