// `shardloom torchrun FLAGS PROGRAM ARGS...` and `shardloom msrun FLAGS PROGRAM ARGS...`.
//
// Background  msrun without --join True: returns when this node's part has begun, and leaves an agent in a session of
//             its own, whose messages go to scheduler.log, or to node_<host>.log where another host has that.
// Returns     0.
// Errors      those of launcher/agent.h.
#pragma once

#include <ostream>

#include "engine/cli/words/arguments.h"

namespace loom::cli {

int run_launcher(const LauncherArguments& arguments, std::ostream& out);

}  // namespace loom::cli
