// The flags of the commands, declared: names, help, ranges, and where their values go. Private to engine/cli.
#pragma once

#include "engine/cli/words/arguments.h"
#include "engine/cli/words/flags.h"
#include "engine/job/key.h"

namespace loom::cli {

using job::is_users;
using job::plans;
using job::Program;

// The keys of the job that the program has, as flags of a command.
void add_training(Command& command, Program program, job::Job& job);
// Those of a plan beside them; `world_size` stays 0 where it is not given.
void add_plan(Flags& flags, PlanArguments& values, int& world_size);
void add_compare(Flags& flags, CompareArguments& values);

}  // namespace loom::cli
