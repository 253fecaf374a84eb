// Declares the flags of the commands: names, help, ranges, and the members for their values. Private to engine/cli.
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
// The flags of a plan beside them; `world_size` stays 0 if it is not given.
void add_plan(Flags& flags, PlanArguments& values, int& world_size);
void add_compare(Flags& flags, CompareArguments& values);
void add_calibrate(Flags& flags, CalibrateArguments& values);

}  // namespace loom::cli
