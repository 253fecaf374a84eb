#include "engine/device/memory_recorder.h"

namespace loom::device {

MemoryRecorder::MemoryRecorder(Device& device) : device_(device) {
  sample();
  device_.memory().observe_changes([this] { sample(); });
}

MemoryRecorder::~MemoryRecorder() { device_.memory().observe_changes({}); }

void MemoryRecorder::sample() {
  const MemStats stats = device_.memory().stats();
  samples_.push_back({.entries = static_cast<std::int64_t>(device_.timeline().entries().size()),
                      .by_category = stats.by_category,
                      .allocated_bytes = stats.allocator.allocated_bytes,
                      .reserved_bytes = stats.allocator.reserved_bytes});
}

}  // namespace loom::device
