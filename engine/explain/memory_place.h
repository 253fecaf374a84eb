// The place of an out of memory in the planned step: which allocation it was, and what would fit.
//
// Size      the text says what PyTorch requested from the driver: a segment (plan::segment_bytes_of). Allocations whose
//           segment is within half of the last digit of it are candidates. Of the host's allocator it says the bytes of
//           the allocation itself.
// Place     of these, the one before which the plan has allocated what the text says, or nearly; the nearest first.
//           Where the traceback before the text says the phase and the work of FSDP, or the trace of FSDP2 where the
//           rank was, only candidates there, if there are any.
//           Without a candidate, the allocations before which as much is allocated, whatever their size.
// Capacity  what PyTorch could reserve: what it has and what is free, at most the device or what is allowed.
// Fits      changes of the job's settings whose planned step fits in the capacity, less what the run had allocated
//           beyond the plan at the place; the fastest first.
// Threads   the calling thread, and those of plans.
// Errors    those of plans.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/explain/error_report.h"
#include "engine/explain/trace_fault.h"
#include "engine/plan/job_allocations.h"
#include "engine/plan/plan_search.h"

namespace loom::explain {

// The job of the run. The references outlive the call.
struct JobOfRun {
  const train::TrainSections& arguments;
  const train::PretrainCallbacks& callbacks;
  const virtual_time::HardwareProfile& profile;
  plan::SearchOptions options = {};
};

struct PlacedAllocation {
  plan::AllocationPlace place;
  std::int64_t bytes = 0;                   // requested
  std::int64_t segment_bytes = 0;           // what it would request from the driver
  std::int64_t allocated_before_bytes = 0;  // in the plan
  int step = 1;                             // 1, or 2 for any later one
};

struct FittingChange {
  std::string change;
  std::int64_t peak_reserved_bytes = 0;
  std::int64_t step_ns = 0;
};

struct MemoryPlace {
  bool size_matches = false;              // of the places
  bool by_trace = false;                  // the places are where the trace of FSDP2 leaves the rank
  bool by_traceback = false;              // they are of the phase that the traceback says
  std::vector<PlacedAllocation> places;   // different ones, the nearest first, at most three
  std::int64_t peak_allocated_bytes = 0;  // of the planned step
  std::int64_t peak_reserved_bytes = 0;
  std::int64_t step_ns = 0;                 // of the planned step, in unlimited memory
  std::int64_t beyond_plan_bytes = 0;       // allocated by the run, at the first place
  std::optional<std::int64_t> limit_bytes;  // that changes have to fit in
  std::vector<FittingChange> changes;
};

// Where the trace of FSDP2 leaves a rank.
struct TracedEnd {
  TracedRank rank;
  std::optional<PassOfJob> at;
};

// What PyTorch could reserve; none: the text does not say.
std::optional<std::int64_t> capacity_of(const OutOfMemory& text);
// Reserved by PyTorch; none: the text does not say.
std::optional<std::int64_t> reserved_by(const OutOfMemory& text);
// Whether the request would fit in what is reserved and unallocated.
bool is_fragmented(const OutOfMemory& text);

// Of a report of an out of memory. `end`: null without a trace.
MemoryPlace place_of(const ErrorReport& report, const JobOfRun& job, const TracedEnd* end = nullptr);

}  // namespace loom::explain
