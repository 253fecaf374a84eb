#include "engine/job/rows.h"

namespace loom::job {

void add_memory_keys(std::vector<Key>& table) {
  add_under("Memory of the device",
            {
                whole<&Job::memory, &Memory::device_memory_mib>(
                    "--device-memory", 0,
                    "MiB that the emulated device has for tensors; 0 = without end, in a plan what the profile leaves"),
                toggle<&Job::memory, &Memory::memory_fragmentation>(
                    "--memory-fragmentation",
                    "Pools of the allocator by how long what is in them lives, and their fragmentation at the end"),
                toggle<&Job::memory, &Memory::adaptive_recompute>(
                    "--adaptive-recompute-device-swap",
                    "Keep, recompute or swap the activations of each layer, whatever is cheapest for a step to fit"),
                whole<&Job::memory, &Memory::adaptive_recompute_mib>(
                    "--adaptive-recompute-device-size", -1,
                    "MiB that it has to fit; -1, or more than there is: the memory of the device"),
                toggle<&Job::memory, &Memory::reuse_fp32_param>(
                    "--reuse-fp32-param",
                    "Weights and their bf16 copies in one memory between steps, exactly; with param_dtype: bf16"),
            },
            table);
  add_under(
      "Swap of activations",
      {
          toggle<&Job::swap, &Swap::swap_attention>(
              "--swap-attention",
              "What --swap-modules of every decoder layer but the last save for backward waits in pinned host memory"),
          texts<&Job::swap, &Swap::swap_modules>(
              "--swap-modules", "NAME",
              "Those modules, separated by commas (input_norm,self_attention,post_attention_norm)"),
          toggle<&Job::swap, &Swap::smart_swap>(
              "--smart-swap",
              "Choose saved tensors to wait there, the largest and longest idle first, until a step fits the device"),
          whole<&Job::swap, &Swap::smart_swap_device_size>(
              "--smart-swap-device-size", 1, "MiB that a step has to fit; a plan takes the memory of --device"),
      },
      table);
  add_under(
      "Cores and host memory",
      {
          text<&Job::launch, &Launch::bind_core>(
              "--bind-core", "TEXT",
              "Bind the threads of each rank to cores: True, False, or {\"device0\": [\"0-9\"], ...}, as msrun has it; CPU_AFFINITY_CONF in the environment does the same")
              .from("False")
              .without_help_in_plan()
              .of_this_rank(),
          text<&Job::launch, &Launch::numa_device>(
              "--numa-device", "PROFILE",
              "Device profile that says at which NUMA node the device of each rank is, for host memory and npu_affine:1: a file, or a name in configs/devices")
              .without_help_in_plan()
              .of_this_rank(),
      },
      table);
}

}  // namespace loom::job
