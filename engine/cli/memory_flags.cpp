#include "engine/cli/memory_flags.h"

#include <limits>

namespace loom::cli {

void add_memory(Flags& flags, ProgramArguments& a) {
  flags.group("Memory of the device");
  flags.whole("--device-memory", a.device_memory_mib, 0,
              "MiB that the emulated device has for tensors; 0 = without end, in a plan what the profile leaves");
  flags.toggle("--memory-fragmentation", a.memory_fragmentation,
               "Pools of the allocator by how long what is in them lives, and their fragmentation at the end");
  flags.toggle("--adaptive-recompute-device-swap", a.adaptive_recompute,
               "Keep, recompute or swap the activations of each layer, whatever is cheapest for a step to fit");
  flags.whole("--adaptive-recompute-device-size", a.adaptive_recompute_mib, -1,
              "MiB that it has to fit; -1, or more than there is: the memory of the device");
  flags.toggle("--reuse-fp32-param", a.reuse_fp32_param,
               "Weights and their bf16 copies in one memory between steps, exactly; with param_dtype: bf16");
}

void check_memory(const ProgramArguments& a) {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max() >> 21;
  if (a.device_memory_mib > kLargest) {
    config_error("--device-memory is {}; use at most {} MiB", a.device_memory_mib, kLargest);
  }
  if (a.adaptive_recompute_mib != -1 && !a.adaptive_recompute) {
    config_error(
        "--adaptive-recompute-device-size is {}, but --adaptive-recompute-device-swap is not given, so nothing is "
        "chosen; add it",
        a.adaptive_recompute_mib);
  }
  if (!a.adaptive_recompute) return;
  const std::pair<bool, std::string_view> others[] = {{a.memory_fragmentation, "--memory-fragmentation"},
                                                      {a.swap_attention, "--swap-attention"},
                                                      {a.smart_swap, "--smart-swap"},
                                                      {!a.megatron_recompute_flags.empty(), "a --recompute flag"}};
  for (const auto& [given, name] : others) {
    if (!given) continue;
    config_error(
        "--adaptive-recompute-device-swap and {} are both given, and the first chooses what is recomputed and swapped; "
        "remove one of them",
        name);
  }
}

void check_memory_search(const PlanArguments& a) {
  if (!a.train.adaptive_recompute || (!a.sweep && a.fit == PlanArguments::Fit::kNothing)) return;
  config_error(
      "--adaptive-recompute-device-swap and {} are both given, and each is a search of its own; remove one of them",
      a.sweep ? "--sweep" : "--fit");
}

}  // namespace loom::cli
