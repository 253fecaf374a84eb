// The memory of a device that its allocator does not have: the driver's context, and what the communication library
// keeps for each communicator.
//
// Communicators  one for each set of at least two ranks that communicate, whatever their groups are called: PyTorch
//                makes a communicator at the first collective of a group, and keeps it.
// Workspaces     of matrix products are inside the allocator, in PyTorch as here.
// Units          bytes of one device.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace loom::comm {
struct UsedGroup;
}
namespace loom::train {
struct TrainSections;
struct TrainingInputs;
}  // namespace loom::train
namespace loom::virtual_time {
struct HardwareProfile;
}

namespace loom::plan {

struct Communicator {
  std::string name;  // of its groups: "dp_shard", or "world/dp_shard" if both are of the same ranks
  int ranks = 0;
  std::int64_t bytes = 0;
};

struct OutsideMemory {
  std::int64_t context_bytes = 0;
  std::string library = {};       // of the communicators: "nccl", "hccl"; empty: they take no memory of the device
  std::int64_t buffer_bytes = 0;  // of each buffer of a communicator
  std::vector<Communicator> communicators = {};
  std::string tool = {};  // that shows the device's memory: "nvidia-smi", "npu-smi"; empty: not known

  std::int64_t communicator_bytes() const;
  std::int64_t bytes() const { return context_bytes + communicator_bytes(); }
};

OutsideMemory outside_memory(const virtual_time::HardwareProfile& profile, std::span<const comm::UsedGroup> groups);
// "context 848.00 MiB, 2 communicators 1.34 GiB (world/loss of 8 ranks, dp_shard of 4)"
std::string parts_text(const OutsideMemory& outside);

// The groups over which a step of the job will communicate, as far as its axes tell. A plan counts those that its step
// has used.
std::vector<comm::UsedGroup> expected_groups(const train::TrainSections& arguments,
                                             const train::TrainingInputs& inputs);

}  // namespace loom::plan
