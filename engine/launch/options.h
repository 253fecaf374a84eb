// LaunchOptions: how many ranks a job has, where they run, and what each gets of the machine.
#pragma once

#include <optional>
#include <string>

#include "engine/device/stream.h"
#include "engine/launch/affinity.h"

namespace loom::launch {

struct LaunchOptions {
  int ranks = 1;            // W: --nproc-per-node, or the MPI launcher's number
  int compute_threads = 1;  // of one rank; filled in: default cores / ranks of this node, at least 1
  device::ExecutorKind device_executor = device::ExecutorKind::kThreaded;
  int distributed_timeout_minutes = 10;
  // Megatron's --distributed-backend, accepted so that launch commands work unchanged; it changes nothing. The guide
  // requires npu:hccl,cpu:gloo under offload_to_cpu because PyTorch's device backend cannot reduce host memory; the
  // groups here can.
  std::string distributed_backend = "nccl";
  std::string bind_core;                   // msrun's --bind-core as it is written
  AffinityRequest affinity{};              // filled in: the request of --bind-core or CPU_AFFINITY_CONF
  std::optional<std::string> numa_device;  // --numa-device: the device profile whose NUMA nodes the ranks' devices have
};

}  // namespace loom::launch
