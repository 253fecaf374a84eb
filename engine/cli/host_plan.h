// HostPlan: where the ranks of this process run, and the host memory that each of them gets. Private to engine/cli.
//
// When      before the ranks start, once a process; nothing is allocated.
// Checked   what the step keeps in host memory, by a dry run of it, for all ranks of this machine against what the
//           machine can give. A step that cannot be planned (its forward reads values) is not checked: a warning.
// Errors    ConfigError for cores that are not this process's; DeviceError where host memory is too small.
#pragma once

#include <vector>

#include "engine/cli/words/arguments.h"
#include "engine/launch/affinity.h"
#include "engine/train/inputs.h"
#include "offload/host_allocator.h"

namespace loom::cli {

struct HostPlan {
  launch::Placement placement;
  offload::HostAllocatorOptions memory;  // of every rank, but for the node
  int first_local_rank = 0;              // of this process among the ranks of this machine

  // `rank_of_process` counts the ranks of this process.
  const launch::RankCores& cores(int rank_of_process) const;
  offload::HostAllocatorOptions memory_of(int rank_of_process) const;
};

HostPlan plan_host(const job::Job& arguments, const train::PretrainCallbacks& callbacks,
                   const train::TrainingInputs& inputs, const launch::Start& launched);

}  // namespace loom::cli
