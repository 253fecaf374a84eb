// What values of flags have to be, by themselves and beside each other, and what follows from them where a flag is not
// given. Private to engine/cli.
//
// Errors   ConfigError: flag, value, what is allowed; of a training command all at once.
#pragma once

#include "engine/cli/words/arguments.h"
#include "engine/cli/words/command.h"
#include "engine/cli/words/refusals.h"
#include "engine/cli/words/training_flags.h"

namespace loom::cli {

// After the parse of `app`.
void check_sources(const job::Job& values, Program program);
// ConfigError with what `refusals` holds and what is wrong besides.
void settle(const Command& app, Program program, const launch::Start& start, job::Job& values, Refusals& refusals);
// Under an MPI launcher: puts its number of ranks into `ranks`, and returns how many of them this machine has.
int take_mpi_ranks(const Command& app, const launch::Start& start, int& ranks);
// What a search looks for is not given beside it; what is given, it keeps.
void settle_search(const Command& app, PlanArguments& values);
// --world-size against --nproc-per-node.
void check_world(const Command& app, int world_size);
void check(const CompareArguments& values);

}  // namespace loom::cli
