// MemoryFigures: what the allocator of a device holds, as logs say it.
#pragma once

#include <cstdint>

namespace loom::log {

// Of a device, now; peaks are those of the step.
struct MemoryFigures {
  std::int64_t reserved_bytes = 0;
  std::int64_t allocated_bytes = 0;
  std::int64_t max_reserved_bytes = 0;
  std::int64_t max_allocated_bytes = 0;
};

}  // namespace loom::log
