#include "engine/train/rank_setup.h"

namespace loom::train {

nn::RankSetup rank_setup(const TrainSections& job, const offload::HostAllocatorOptions& host) {
  nn::RankSetup setup{.compute_threads = job.launch.compute_threads, .kernels = job.kernels.fused};
  setup.device.executor = job.launch.device_executor;
  if (job.memory.device_memory_mib > 0) setup.device.profile.memory_bytes = job.memory.device_memory_bytes();
  setup.device.allocator = job.memory.allocator();
  setup.device.host_allocator = offload::make_host_allocator(host);
  return setup;
}

}  // namespace loom::train
