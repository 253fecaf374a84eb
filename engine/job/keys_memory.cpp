#include "engine/job/rows.h"

namespace loom::job {

void add_memory_keys(std::vector<Key>& table) {
  add_under(
      "Memory of the device",
      {
          whole<&Job::memory, &Memory::device_memory_mib>(
              "--device-memory", 0, "Device memory for tensors in MiB; 0 = unlimited, in a plan the profile's memory"),
          text<&Job::memory, &Memory::alloc_conf>(
              "--alloc-conf", "TEXT",
              "Options of PyTorch's allocator: expandable_segments:True,...; also PYTORCH_ALLOC_CONF in the environment")
              .from("PyTorch's, or those of the plan's profile"),
          toggle<&Job::memory, &Memory::memory_fragmentation>(
              "--memory-fragmentation", "Allocator pools by lifetime; prints their fragmentation at the end"),
          toggle<&Job::memory, &Memory::adaptive_recompute>(
              "--adaptive-recompute-device-swap",
              "Keep, recompute or swap the activations of each layer: the cheapest choice that fits"),
          whole<&Job::memory, &Memory::adaptive_recompute_mib>(
              "--adaptive-recompute-device-size", -1,
              "Memory in MiB that a step may use with it; -1 = the memory of the device"),
          toggle<&Job::memory, &Memory::reuse_fp32_param>(
              "--reuse-fp32-param",
              "Store fp32 weights and their bf16 copies in the same memory, exactly; needs param_dtype: bf16"),
      },
      table);
  add_under(
      "Swap of activations",
      {
          toggle<&Job::swap, &Swap::swap_attention>(
              "--swap-attention",
              "Offload what --swap-modules save for backward to pinned host memory, in all decoder layers but the last"),
          texts<&Job::swap, &Swap::swap_modules>(
              "--swap-modules", "NAME",
              "Modules for --swap-attention, separated by commas (input_norm,self_attention,post_attention_norm)"),
          toggle<&Job::swap, &Swap::smart_swap>(
              "--smart-swap",
              "Offload saved tensors, the largest and longest idle first, until a step fits the device"),
          whole<&Job::swap, &Swap::smart_swap_device_size>(
              "--smart-swap-device-size", 1,
              "Memory in MiB that a step may use with --smart-swap; default in a plan: the memory of --device"),
      },
      table);
  add_under(
      "Cores and host memory",
      {
          text<&Job::launch, &Launch::bind_core>(
              "--bind-core", "TEXT",
              "Bind the threads of each rank to cores, as msrun does: True, False, or {\"device0\": [\"0-9\"], ...}; also CPU_AFFINITY_CONF in the environment")
              .from("False")
              .without_help_in_plan()
              .of_this_rank(),
          text<&Job::launch, &Launch::numa_device>(
              "--numa-device", "PROFILE",
              "Device profile with the NUMA node of each device, for host memory and npu_affine:1: a file, or a name in configs/devices")
              .without_help_in_plan()
              .of_this_rank(),
      },
      table);
}

}  // namespace loom::job
