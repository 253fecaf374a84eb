// MemoryOptions: the memory of the emulated device, as flags set it.
#pragma once

#include <cstdint>
#include <string>

#include "engine/device/allocator_settings.h"

namespace loom::train {

struct MemoryOptions {
  // The allocator's limit in MiB. 0: unlimited in a run; the profile's free memory in a plan.
  std::int64_t device_memory_mib = 0;
  std::string alloc_conf = {};               // as PYTORCH_ALLOC_CONF; empty: a plan's profile, else PyTorch's defaults
  bool memory_fragmentation = false;         // pools by life class (device/life_class.h)
  bool adaptive_recompute = false;           // keep, recompute or swap, module by module (plan/adaptive.h)
  std::int64_t adaptive_recompute_mib = -1;  // the limit of a step; -1, 0, or above the device's memory: that memory
  bool record_allocator = false;             // plans keep the allocator's events of the step (--memory-snapshot)
  bool reuse_fp32_param = false;             // bf16 copies of weights inside their fp32 memory (sharding/reuse_fp32.h)

  std::int64_t device_memory_bytes() const { return device_memory_mib << 20; }
  // `usual`: where alloc_conf is empty.
  device::AllocatorSettings allocator(const std::string& usual = {}) const {
    auto settings = device::read_allocator_settings(alloc_conf.empty() ? usual : alloc_conf, "--alloc-conf");
    if (memory_fragmentation) settings.pools = device::PoolRule::kByLife;
    return settings;
  }
};

}  // namespace loom::train
