// HostPlan: the cores of this process's ranks, and the host memory of each. Private to engine/cli.
//
// When      before the ranks start, once per process; nothing is allocated.
// Checked   the host memory of the step, by a dry run of it, for all ranks of this machine against the memory
//           available. A step that cannot be planned (its forward reads values) is not checked: a warning.
// Errors    ConfigError for cores outside this process's set; DeviceError if host memory is too small.
#pragma once

#include <vector>

#include "engine/cli/words/arguments.h"
#include "engine/launch/affinity.h"
#include "engine/train/inputs.h"
#include "offload/host_allocator.h"

namespace loom::cli {

struct HostPlan {
  launch::Placement placement;
  offload::HostAllocatorOptions memory;  // for every rank, without the node
  int first_local_rank = 0;              // of this process among the ranks of this machine

  // `rank_of_process` counts the ranks of this process.
  const launch::RankCores& cores(int rank_of_process) const;
  offload::HostAllocatorOptions memory_of(int rank_of_process) const;
};

HostPlan plan_host(const job::Job& arguments, const train::PretrainCallbacks& callbacks,
                   const train::TrainingInputs& inputs, const launch::Start& launched);

}  // namespace loom::cli
