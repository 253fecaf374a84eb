// The host memory of a step: before a run begins, and in a plan against its profile.
//
// Units    bytes; of one rank unless a host is named.
// Peers    rank 0 represents all: it has the largest shards.
// Errors   the planner's errors (planner.h).
#pragma once

#include <cstdint>
#include <optional>

#include "engine/plan/planner.h"
#include "engine/train/inputs.h"

namespace loom::plan {

// Peaks of a step.
struct HostNeed {
  std::int64_t bytes = 0;         // shards, gradients, optimizer state and everything else kept off the device
  std::int64_t pinned_bytes = 0;  // of these, requested as page-locked
};

// Whether any part of the job is kept on the host; otherwise HostNeed is 0 and need not be planned.
bool keeps_on_host(const train::OptimizerOptions& optimizer, const offload::SwapOptions& swap,
                   const train::TrainingInputs& inputs);

// From steps of the trainer on a dry device: nothing is allocated. `inputs` are the run's.
HostNeed plan_host_need(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
                        const train::TrainingInputs& inputs);

// Fills in the host's share of `memory`, whose host_bytes is known, for `world` devices of the profile.
void measure_host(MemoryEstimate& memory, const virtual_time::HardwareProfile& profile, int world);
// Why the host of the profile is too small; nothing if it is large enough or its size unknown.
std::optional<std::string> host_too_small(const MemoryEstimate& memory, const virtual_time::HardwareProfile& profile);

}  // namespace loom::plan
