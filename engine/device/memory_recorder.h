// MemoryRecorder: how a device's memory went, change by change, while the recorder lives.
//
// Place    each sample knows how many entries the timeline had: what the host had issued when the memory changed. The
//          timeline is enabled, or every sample stands at 0.
// Order    the host's, as the accounts of the memory are.
// Threads  the rank's host thread. One recorder of a device at a time.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/device/device.h"

namespace loom::device {

struct MemorySample {
  std::int64_t entries = 0;  // of Timeline::entries(), issued before
  CategoryBytes by_category{};
  std::int64_t allocated_bytes = 0;  // by the caching allocator: the categories and what it does not split off
  std::int64_t reserved_bytes = 0;
};

class MemoryRecorder {
 public:
  // The first sample is how the memory stands now.
  explicit MemoryRecorder(Device& device);
  ~MemoryRecorder();
  MemoryRecorder(const MemoryRecorder&) = delete;
  MemoryRecorder& operator=(const MemoryRecorder&) = delete;

  std::vector<MemorySample> take() { return std::move(samples_); }

 private:
  void sample();

  Device& device_;
  std::vector<MemorySample> samples_;
};

}  // namespace loom::device
