#include "engine/cli/words/memory_checks.h"

#include <limits>

namespace loom::cli {

void settle_allocator(const launch::Start& start, train::MemoryOptions& memory) {
  if (!memory.alloc_conf.empty() || start.alloc_conf.empty()) return;
  device::read_allocator_settings(start.alloc_conf, start.alloc_conf_from);
  memory.alloc_conf = start.alloc_conf;
}

void check_memory(const job::Job& a) {
  a.memory.allocator();  // refuses what PyTorch refuses
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max() >> 21;
  if (a.memory.device_memory_mib > kLargest) {
    config_error("--device-memory is {}; use at most {} MiB", a.memory.device_memory_mib, kLargest);
  }
}

void check_memory_search(const PlanArguments& a) {
  if (!a.sweep && a.fit == PlanArguments::Fit::kNothing) return;
  const char* search = a.sweep ? "--sweep" : "--fit";
  if (a.train.report.memory_snapshot) {
    config_error(
        "--memory-snapshot and {} are both given, but a snapshot is of one plan; remove one of them, or write the file "
        "of a plan with what the search chose",
        search);
  }
  if (!a.train.memory.adaptive_recompute) return;
  config_error(
      "--adaptive-recompute-device-swap and {} are both given, and each is a search of its own; remove one of them",
      search);
}

}  // namespace loom::cli
