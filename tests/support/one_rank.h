// One rank on this thread with a device of its own, for the time of a test.
#pragma once

#include <memory>

#include "engine/core/parallel.h"
#include "engine/core/rank_context.h"
#include "engine/device/device.h"

namespace loom::test {

// The process's arena: tests come and go, touched pages stay.
inline std::shared_ptr<device::Arena> shared_arena() {
  static const std::shared_ptr<device::Arena> arena = device::Arena::create();
  return arena;
}

class OneRank {
 public:
  explicit OneRank(device::DeviceOptions options = {}, int compute_threads = 1) : scope_(context_) {
    if (!options.arena) options.arena = shared_arena();
    if (compute_threads != 1) context_.slot<ComputePool>().resize(compute_threads);
    device_ = &device::Device::install(context_, options);
  }

  RankContext& context() { return context_; }
  device::Device& device() { return *device_; }
  device::MemStats stats() const { return device_->memory().stats(); }
  std::int64_t bytes() const { return stats().total_bytes; }

 private:
  RankContext context_{0, 1};
  RankScope scope_;
  device::Device* device_ = nullptr;
};

}  // namespace loom::test
