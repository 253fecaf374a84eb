// MemoryFigures: the memory in a device's allocator, as logs report it.
#pragma once

#include <cstdint>

namespace loom::log {

// Present figures of a device; peaks are the peaks of the step.
struct MemoryFigures {
  std::int64_t reserved_bytes = 0;
  std::int64_t allocated_bytes = 0;
  std::int64_t max_reserved_bytes = 0;
  std::int64_t max_allocated_bytes = 0;
};

}  // namespace loom::log
