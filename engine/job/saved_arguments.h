// What a checkpoint keeps of a job below args.*: the values of the keys whose rows say so, and the few that follow from
// several keys.
//
// Threads   safe from any number of threads.
#pragma once

#include "engine/job/job.h"
#include "engine/train/saved_arguments.h"

namespace loom::job {

train::SavedArguments saved_arguments(const Job& job);

}  // namespace loom::job
