#include "engine/cli/words/memory_checks.h"

#include <limits>

namespace loom::cli {

void check_memory(const job::Job& a) {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max() >> 21;
  if (a.memory.device_memory_mib > kLargest) {
    config_error("--device-memory is {}; use at most {} MiB", a.memory.device_memory_mib, kLargest);
  }
  if (a.memory.adaptive_recompute_mib != -1 && !a.memory.adaptive_recompute) {
    config_error(
        "--adaptive-recompute-device-size is {}, but --adaptive-recompute-device-swap is not given, so nothing is "
        "chosen; add it",
        a.memory.adaptive_recompute_mib);
  }
  if (!a.memory.adaptive_recompute) return;
  const std::pair<bool, std::string_view> others[] = {
      {a.memory.memory_fragmentation, "--memory-fragmentation"},
      {a.swap.swap_attention, "--swap-attention"},
      {a.swap.smart_swap, "--smart-swap"},
      {!a.parallel.megatron_recompute_flags.empty(), "a --recompute flag"}};
  for (const auto& [given, name] : others) {
    if (!given) continue;
    config_error(
        "--adaptive-recompute-device-swap and {} are both given, and the first chooses what is recomputed and swapped; "
        "remove one of them",
        name);
  }
}

void check_memory_search(const PlanArguments& a) {
  if (!a.train.memory.adaptive_recompute || (!a.sweep && a.fit == PlanArguments::Fit::kNothing)) return;
  config_error(
      "--adaptive-recompute-device-swap and {} are both given, and each is a search of its own; remove one of them",
      a.sweep ? "--sweep" : "--fit");
}

}  // namespace loom::cli
