// TrainSections: what a training run reads of its job, a section for each room. Functions take the sections that they
// need; only what makes a rank, its inputs and its trainer takes them all. job::Job adds the sections of rooms above.
//
// Filled   engine/cli/words/arguments.h makes it from a command line, fills in the defaults that depend on
//          others, and checks everything that flags alone can tell. Files are read by the rooms that need them.
#pragma once

#include "engine/data/options.h"
#include "engine/launch/options.h"
#include "engine/log/options.h"
#include "engine/train/checkpoint_options.h"
#include "engine/train/kernel_choice.h"
#include "engine/train/memory_options.h"
#include "engine/train/objective_options.h"
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
  ObjectiveOptions objective;
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
