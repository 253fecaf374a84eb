// The host memory of an offloading rank: HostBuffers behind device::HostAllocator, to be given to
// DeviceOptions::host_allocator.
//
// Placement, pinning and what is said when the system refuses them: host_memory.h. A refusal never stops the run.
// Reuse     a piece that is let go is kept and given out again for the same size and pinning, so that gradients, which
//           come and go every step, are mapped, placed and locked once. Kept pieces go back to the system when the
//           allocator and its last piece are gone.
// Threads   pieces may end on any thread; they are asked for by the rank's host thread, whose node they prefer.
#pragma once

#include <memory>

#include "engine/device/host_memory.h"
#include "offload/host_memory.h"

namespace loom::offload {

// One of a rank. `calls` outlives it and its pieces.
std::shared_ptr<device::HostAllocator> make_host_allocator(HostMemoryCalls& calls = HostMemoryCalls::system());

}  // namespace loom::offload
