// The outputs of a command, refused or prepared before anything is computed. Private to engine/cli.
//
// Refused  an output that is an input (data, model, configuration) or another output; a folder, file or disk that
//          cannot be written; an output that another run is writing.
// Writers  rank 0 writes everything except profiles, which each of --profile-ranks writes.
// Errors   ConfigError with the flags.
#pragma once

#include <optional>
#include <vector>

#include "engine/cli/words/arguments.h"
#include "engine/io/output_lock.h"

namespace loom::cli {

// Opens a training run's outputs; the locks are held while the run writes. `rank`: this process's, none if all are
// its threads. Every rank refuses what flags and inputs forbid; the writing ranks prepare their outputs.
std::vector<io::OutputLock> open_outputs(const job::Job& arguments, std::optional<int> rank);

// Opens a plan's outputs.
void open_outputs(const PlanArguments& arguments);

}  // namespace loom::cli
