// The part of a job that a checkpoint keeps below args.*: the values of the keys whose rows select it, and a few that
// follow from several keys.
//
// Threads   safe from any number of threads.
#pragma once

#include "engine/job/job.h"
#include "engine/train/saved_arguments.h"

namespace loom::job {

train::SavedArguments saved_arguments(const Job& job);

}  // namespace loom::job
