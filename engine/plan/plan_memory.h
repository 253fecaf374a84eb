// The memory of a planned step: peaks of its phases, and where the allocator emptied its cache. Private to
// engine/plan.
#pragma once

#include "engine/device/recording.h"
#include "engine/plan/planner.h"

namespace loom::plan {

// Phases, peaks and flushes of one step recorded with its memory.
void measure_memory(MemoryEstimate& memory, const device::Recording& recording);

}  // namespace loom::plan
