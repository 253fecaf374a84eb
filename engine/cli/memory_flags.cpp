#include "engine/cli/memory_flags.h"

#include <limits>

namespace loom::cli {

void add_memory(Flags& flags, ProgramArguments& a) {
  flags.group("Memory of the device");
  flags.whole("--device-memory", a.device_memory_mib, 0,
              "MiB that the emulated device has for tensors; 0 = without end, in a plan what the profile leaves");
  flags.toggle("--memory-fragmentation", a.memory_fragmentation,
               "Pools of the allocator by how long what is in them lives, and their fragmentation at the end");
  flags.toggle("--reuse-fp32-param", a.reuse_fp32_param,
               "Weights and their bf16 copies in one memory between steps, exactly; with param_dtype: bf16");
}

void check_memory(const ProgramArguments& a) {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max() >> 21;
  if (a.device_memory_mib > kLargest) {
    config_error("--device-memory is {}; use at most {} MiB", a.device_memory_mib, kLargest);
  }
}

}  // namespace loom::cli
