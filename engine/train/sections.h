// TrainSections: the sections of a job that a training run reads, one for each room. Functions take the sections that
// they need; only the makers of a rank, its inputs and its trainer take all. job::Job adds the sections of rooms above.
//
// Filled   engine/cli/words/arguments.h makes it from a command line, fills in the defaults that depend on
//          others, and checks everything that depends on flags alone. The rooms that need files read them.
#pragma once

#include "engine/data/options.h"
#include "engine/launch/options.h"
#include "engine/log/options.h"
#include "engine/objective/options.h"
#include "engine/train/checkpoint_options.h"
#include "engine/train/kernel_choice.h"
#include "engine/train/memory_options.h"
#include "engine/train/optimizer_options.h"
#include "engine/train/parallel_options.h"
#include "engine/train/schedule_options.h"
#include "models/hub/options.h"
#include "offload/swap_options.h"

namespace loom::train {

struct TrainSections {
  launch::LaunchOptions launch;
  models::ModelOptions model;
  data::DataOptions data;
  objective::ObjectiveOptions objective;
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  ParallelOptions parallel;
  MemoryOptions memory;
  offload::SwapOptions swap;
  KernelChoice kernels;
  CheckpointOptions checkpoint;
  log::LogOptions log;
};

}  // namespace loom::train
