// Variables that launch scripts export. Private to engine/cli.
//
// Those that start ranks are in engine/launch/start.h.
#pragma once

namespace loom::cli {

// One warning for each variable of the table in environment.cpp that is set and changes nothing. `sharded`: the job has
// FSDP2.
void warn_of_environment(bool sharded);

}  // namespace loom::cli
