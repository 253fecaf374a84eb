// What values of flags have to be, by themselves and beside each other, and what follows from them where a flag is not
// given. Private to engine/cli.
//
// Errors   ConfigError in one line: flag, value, what is allowed.
#pragma once

#include <CLI/CLI.hpp>

#include "engine/cli/arguments.h"
#include "engine/cli/foreign_flags.h"
#include "engine/cli/training_flags.h"

namespace loom::cli {

// After the parse of `app`.
void check_sources(const ProgramArguments& values, Program program);
void settle(const CLI::App& app, Program program, const launch::LaunchContext& context, const ForeignFlags& foreign,
            ProgramArguments& values);
// Under an MPI launcher: puts its number of ranks into `ranks`, and returns how many of them this machine has.
int take_mpi_ranks(const CLI::App& app, const launch::LaunchContext& context, int& ranks);
// What a search looks for is not given beside it; what is given, it keeps.
void settle_search(const CLI::App& app, PlanArguments& values);
// --world-size against --nproc-per-node.
void check_world(const CLI::App& app, int world_size);
void check(const CompareArguments& values);

}  // namespace loom::cli
