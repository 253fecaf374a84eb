// The rules for values of flags, single and combined, and the values that follow for flags that are not
// given. Private to engine/cli.
//
// Errors   ConfigError: flag, value, allowed values; for a training command, all at once.
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
// Under a launcher of processes: puts its number of ranks into `ranks`, and returns how many of them this machine has.
int take_processes(const Command& app, const launch::Start& start, int& ranks);
// A search's result may not be given beside it; other given values are kept.
void settle_search(const Command& app, PlanArguments& values);
// Checks --world-size against --nproc-per-node.
void check_world(const Command& app, int world_size);
void check(const CompareArguments& values);
void check(const CalibrateArguments& values);

}  // namespace loom::cli
