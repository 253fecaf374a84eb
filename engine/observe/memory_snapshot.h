// The memory of a recorded step as a snapshot that torch.cuda._memory_viz and pytorch.org/memory_viz open.
//
// Trace     of the step: every event of the caching allocator. Blocks from before it are in the segments.
// Sizes     of events too, what the allocator counts: the trace's sum reaches the step's peak of allocated memory. What
//           was asked for is the requested_size of blocks and events.
// Time      virtual, in microseconds from the beginning of the step: when the compute stream has done the kernels
//           issued before the event (memory_points.h).
// Frames    the innermost: module, or group, and what the memory is for - {"filename": "model.layers.3.mlp", "name":
//           "gate_proj: mm"}; the modules around it; last the category and the phase of the step. Lines are 0. A free
//           has the frames of its allocation.
// Notes     phases are external annotations; user_metadata is the category of an allocation.
// Devices   the rank's is device 0.
// Threads   any.
#pragma once

#include <string>

#include "engine/device/recording.h"
#include "engine/virtual_time/resolve.h"

namespace loom::io {
struct MemorySnapshot;
}

namespace loom::observe {

// `conf`: as PYTORCH_ALLOC_CONF. Precondition: the recording has the allocator's trace.
io::MemorySnapshot memory_snapshot(const device::Recording& recording, const virtual_time::RankTimes& times,
                                   const std::string& conf);

}  // namespace loom::observe
