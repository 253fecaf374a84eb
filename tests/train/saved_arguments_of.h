// The arguments that a checkpoint of a run with these options keeps.
#pragma once

#include "engine/job/saved_arguments.h"

namespace loom::train {

inline SavedArguments saved_arguments_of(const TrainSections& arguments) {
  job::Job job;
  static_cast<TrainSections&>(job) = arguments;
  return job::saved_arguments(job);
}

}  // namespace loom::train
