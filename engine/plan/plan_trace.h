// The planned step as files of other tools.
//
// Perfetto  virtual time, of a pipeline one rank of each place, everything shown (perfetto.h).
// Snapshot  the memory of the rank whose figures the plan shows (observe/memory_snapshot.h): its segments are the
//           plan's reserved memory at the end of the step, its blocks the allocated memory, its trace reaches the peak.
// Threads   any.
#pragma once

#include <string>

#include "engine/plan/planner.h"

namespace loom::plan {

std::string to_perfetto(const StepEstimate& plan);
// Precondition: planned with MemoryOptions::record_allocator.
std::string to_memory_snapshot(const StepEstimate& plan);

}  // namespace loom::plan
