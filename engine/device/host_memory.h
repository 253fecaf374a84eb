// HostMemory: the host's memory beside one device, for data that is kept off the device; accounted by category.
//
// Allocator     a HostAllocator, injected when the device is made (DeviceOptions::host_allocator). Lower floors only
//               choose "on the host, pinned or not"; a higher floor implements NUMA and mlock. Without an allocator it
//               is ordinary memory of the process.
// Accounting    as DeviceMemory: from allocate() to the end of the block's last owner, in the order of the host's
//               calls. Bytes are the requested ones. The host has no capacity here: running out is the allocator's
//               error.
// Dry run       blocks have sizes and no bytes.
// Threads       HostMemory: the rank's host thread. HostAllocator: its pieces may end on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/device/memory.h"

namespace loom::device {

class HostAllocator {
 public:
  HostAllocator() = default;
  HostAllocator(const HostAllocator&) = delete;
  HostAllocator& operator=(const HostAllocator&) = delete;
  virtual ~HostAllocator() = default;

  // `bytes` >= 0 of memory, 64-byte aligned, contents undefined; never null. `pinned`: page-locked where the system
  // grants it. The piece may outlive the allocator. Throws DeviceError when the system has no memory.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes, bool pinned) = 0;

  // Memory of the process; cannot pin.
  static std::shared_ptr<HostAllocator> ordinary();
};

class HostMemory {
 public:
  HostMemory(std::shared_ptr<HostAllocator> allocator, bool dry_run);

  std::shared_ptr<Block> allocate(std::int64_t bytes, MemCategory category, bool pinned);

  // The live blocks: shards, gradients and optimizer state by their categories.
  MemStats stats() const;
  // Peaks restart from the present values.
  void reset_peaks();

 private:
  const std::shared_ptr<HostAllocator> allocator_;
  const bool dry_run_;
  const std::shared_ptr<MemLedger> ledger_;
};

}  // namespace loom::device
