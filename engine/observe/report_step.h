// One step in virtual time, as a report draws it: arrays, one element per entry.
//
// timeline          "streams", "names", "groups": texts; "entries": {"stream", "name", "group" (numbers of these texts;
//                   -1: none), "start_ns", "duration_ns", "bytes" (received over links, or written)}, in host order;
//                   "phases": [{"phase", "start_ns"}] as the compute stream reaches them; "end_ns"; "entries_of_step"
//                   and "entries_shown", fewer if the step exceeds the limit: then the first ones. The group
//                   of a copy or a collective is its own; a kernel's is the one that the compute stream waited for
//                   last; kernels of the optimizer have none.
//                   add_step() adds "exposed": {"start_ns", "duration_ns", "group"}, the times when compute idled for
//                   a collective, and its group.
// groups            [{"group", "gathers", "gathered_bytes", "gather_ns", "reductions", "reduced_bytes", "reduce_ns",
//                   "exposed_ns", "compute_ns"}]: step_groups.h.
// memory_over_step  "time_ns"; "by_category": {"shard_bytes", ...}; "allocated_bytes", "reserved_bytes"; "peak_bytes":
//                   {"shard", ..., "total"}, of all changes, as in metrics.jsonl;
//                   "changes_of_step" and "points_shown", fewer if there are more than the limit or several at one
//                   instant: each point is then the largest moment of its interval. The last is the step's end.
//                   A change is at the compute stream's time (memory_points.h).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "engine/device/recording.h"
#include "engine/virtual_time/resolve.h"

namespace loom::observe {

// One step, with its memory and its times.
struct ReportStep {
  const device::Recording& recording;
  const virtual_time::RankTimes& times;
};

inline constexpr std::int64_t kReportEntries = 40'000;
inline constexpr std::int64_t kReportMemoryPoints = 2'000;

nlohmann::ordered_json timeline_json(const ReportStep& step, std::int64_t limit = kReportEntries);
nlohmann::ordered_json memory_over_step_json(const ReportStep& step, std::int64_t limit = kReportMemoryPoints);
// Adds both and "groups", under their keys.
void add_step(nlohmann::ordered_json& report, const ReportStep& step);

}  // namespace loom::observe
