// Variables that launch scripts export. Private to engine/cli.
//
//   RANK, LOCAL_RANK, WORLD_SIZE   of torchrun and msrun: a process for each rank, which is not built
//   others                         named once where they change nothing here
#pragma once

#include "engine/launch/start.h"

namespace loom::cli {

// ConfigError where torchrun or msrun has started this process as one of several ranks: each of them would train alone.
void check_environment(const launch::Start& start);
// One warning for each variable of the table in environment.cpp that is set and changes nothing. `sharded`: the job has
// FSDP2.
void warn_of_environment(bool sharded);

}  // namespace loom::cli
