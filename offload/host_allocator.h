// The host memory of an offloading rank: HostBuffers behind device::HostAllocator, for
// DeviceOptions::host_allocator.
//
// Placement, pinning and the warnings when the system refuses them: host_memory.h. A refusal never stops the run.
// Pool      pinned pieces come from one pool of the size in the step's plan (pinned_pool.h), made with the first
//           of them; pieces that do not fit into it, and all pinned pieces if no size is known, are buffers of their
//           own, pinned as long as the rank's part of the limit of locked memory lasts.
// Reuse     a freed piece is kept and reused for the same size and pinning, so that gradients, which
//           come and go every step, are mapped, placed and locked once. Kept pieces return to the system when the
//           allocator and its last piece are gone.
// Threads   pieces may end on any thread; the rank's host thread requests them, and they prefer its node.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "engine/device/host_memory.h"
#include "offload/host_memory.h"

namespace loom::offload {

struct HostAllocatorOptions {
  std::size_t pinned_pool_bytes = 0;  // the maximum for the rank's step; 0: not known
  int ranks_of_process = 1;           // ranks that share its limit of locked memory
  std::optional<int> node{};          // the memory's node; nothing: the node of the requesting thread's core
};

// One per rank. `calls` outlives it and its pieces.
std::shared_ptr<device::HostAllocator> make_host_allocator(const HostAllocatorOptions& options,
                                                           HostMemoryCalls& calls = HostMemoryCalls::system());
std::shared_ptr<device::HostAllocator> make_host_allocator(HostMemoryCalls& calls = HostMemoryCalls::system());

}  // namespace loom::offload
