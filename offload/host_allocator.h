// The host memory of an offloading rank: HostBuffers behind device::HostAllocator, to be given to
// DeviceOptions::host_allocator.
//
// Placement, pinning and what is said when the system refuses them: host_memory.h. A refusal never stops the run.
// Pool      pinned pieces come from one pool as large as the plan of the step says (pinned_pool.h), made at the first
//           of them; what the pool has no place for, and all pinned pieces where no size is told, are buffers of their
//           own, pinned as long as the rank's part of the limit of locked memory lasts.
// Reuse     a piece that is let go is kept and given out again for the same size and pinning, so that gradients, which
//           come and go every step, are mapped, placed and locked once. Kept pieces go back to the system when the
//           allocator and its last piece are gone.
// Threads   pieces may end on any thread; they are asked for by the rank's host thread, whose node they prefer.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "engine/device/host_memory.h"
#include "offload/host_memory.h"

namespace loom::offload {

struct HostAllocatorOptions {
  std::size_t pinned_pool_bytes = 0;  // that the rank's step needs at most; 0: not known
  int ranks_of_process = 1;           // that share its limit of locked memory
  std::optional<int> node{};          // where the memory goes; nothing: the node of the asking thread's core
};

// One of a rank. `calls` outlives it and its pieces.
std::shared_ptr<device::HostAllocator> make_host_allocator(const HostAllocatorOptions& options,
                                                           HostMemoryCalls& calls = HostMemoryCalls::system());
std::shared_ptr<device::HostAllocator> make_host_allocator(HostMemoryCalls& calls = HostMemoryCalls::system());

}  // namespace loom::offload
