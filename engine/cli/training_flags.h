// The flags of the commands, declared: names, help, ranges, and where their values go. Private to engine/cli.
#pragma once

#include "engine/cli/arguments.h"
#include "engine/cli/flags.h"

namespace loom::cli {

// Whose command line it is: `shardloom train` has a few flags that other programs of pretrain() have not.
enum class Program { kShardloomTrain, kShardloomPlan, kUsersTrain, kUsersPlan };

inline bool is_users(Program program) { return program == Program::kUsersTrain || program == Program::kUsersPlan; }
inline bool plans(Program program) { return program == Program::kShardloomPlan || program == Program::kUsersPlan; }

// All flags of training on one command.
void add_training(Flags& flags, Program program, ProgramArguments& values);
// Those of a plan beside them; `world_size` stays 0 where it is not given.
void add_plan(Flags& flags, PlanArguments& values, int& world_size);
void add_compare(Flags& flags, CompareArguments& values);

}  // namespace loom::cli
