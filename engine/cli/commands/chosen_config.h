// --write-config: the fsdp2_config.yaml of what a search chose, and the command that trains with it.
//
// File     the keys of the choice, below a comment with its figures and the command. Flags that the choice sets besides
//          (micro-batch, sequence) are in the command.
// Command  the words of the plan as words of `train`. More ranks than a node has devices are started by mpirun.
// Errors   those of io::write_text().
//
// Private to engine/cli.
#pragma once

#include <cstddef>
#include <optional>

#include "engine/cli/words/arguments.h"
#include "engine/plan/config_file.h"
#include "engine/plan/plan_choice.h"
#include "engine/virtual_time/profile.h"

namespace loom::cli {

// Writes the file. Precondition: --write-config is given.
plan::WrittenConfig write_chosen(const PlanArguments& arguments, const plan::Candidate& chosen,
                                 std::optional<std::size_t> row, const virtual_time::HardwareProfile& profile);

}  // namespace loom::cli
