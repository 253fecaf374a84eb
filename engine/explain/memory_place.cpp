#include "engine/explain/memory_place.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "engine/core/rounding.h"
#include "engine/core/shown_path.h"

namespace loom::explain {
namespace {

using plan::AllocationPoint;
using plan::JobAllocations;

constexpr std::size_t kMostPlaces = 3;
constexpr std::size_t kMostDescribed = 512;  // points, among which different places are looked for
constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kPlannedUnit = 512;  // to which the plan rounds requests

bool has_size(const AllocationPoint& point, const OutOfMemory& text) {
  if (!text.tried) return false;
  if (text.platform == "CPU") return point.bytes == round_up(text.tried->bytes, kPlannedUnit);
  const std::int64_t segment = plan::segment_bytes_of(point.bytes);
  return segment >= text.tried->least() && segment <= text.tried->most();
}

std::int64_t distance(const AllocationPoint& point, const OutOfMemory& text) {
  return text.allocated ? std::abs(point.allocated_before_bytes - text.allocated->bytes) : 0;
}

// Those of the size, or all where there are none; the nearest first.
std::vector<AllocationPoint> nearest(const JobAllocations& allocations, const OutOfMemory& text, bool& size_matches) {
  std::vector<AllocationPoint> points;
  std::ranges::copy_if(allocations.points(), std::back_inserter(points),
                       [&](const AllocationPoint& point) { return has_size(point, text); });
  size_matches = !points.empty();
  if (!size_matches && text.allocated) points = allocations.points();
  std::ranges::stable_sort(points, {}, [&](const AllocationPoint& point) { return distance(point, text); });
  return points;
}

bool is_below(const std::string& module, const std::string& group) {
  return module == group || module.starts_with(group + ".");
}

std::string phase_at(const TracedRank& at) { return at.event == "root_post_backward" ? "optimizer" : at.phase; }

// Behind the last line of a group, memory may be of any group of the phase.
bool is_at(const plan::AllocationPlace& place, const TracedRank& at) {
  if (place.phase != phase_at(at)) return false;
  if (at.event.find("post_") != std::string::npos) return true;
  return place.group == shown_path(at.group) || (!at.group.empty() && is_below(place.module, at.group));
}

PlacedAllocation placed_at(const AllocationPoint& point, const JobAllocations& allocations) {
  return {.place = allocations.place_of(point),
          .bytes = point.bytes,
          .segment_bytes = plan::segment_bytes_of(point.bytes),
          .allocated_before_bytes = point.allocated_before_bytes,
          .step = point.step};
}

// Keeps those that fit; all, if none does.
template <class Place, class Fits>
bool keep_fitting(std::vector<Place>& places, Fits fits) {
  const bool any = std::ranges::any_of(places, fits);
  if (any) std::erase_if(places, std::not_fn(fits));
  return any;
}

// A group's work may allocate on behalf of another one, which is gathered ahead: then the phase alone is known.
bool follow_trace(std::vector<PlacedAllocation>& places, const TracedEnd& end) {
  const auto is_there = [&](const PlacedAllocation& placed) { return is_at(placed.place, end.rank); };
  const auto in_phase = [&](const PlacedAllocation& placed) { return placed.place.phase == phase_at(end.rank); };
  if (!keep_fitting(places, is_there) && !keep_fitting(places, in_phase)) return false;
  if (!end.at) return true;
  keep_fitting(places, [&](const PlacedAllocation& placed) { return placed.place.micro_batch == end.at->micro_batch; });
  return true;
}

FsdpWork work_of(const plan::AllocationPlace& place) {
  if (place.what == "buffer of an all-gather") return FsdpWork::kGather;
  if (place.what == "whole parameters") return FsdpWork::kCopyOut;
  const bool reduces = place.what == "buffer of a reduce-scatter" || place.what == "gradient shards";
  return reduces ? FsdpWork::kReduce : FsdpWork::kNone;
}

bool follow_traceback(std::vector<PlacedAllocation>& places, const Traceback& traceback) {
  if (traceback.phase.empty()) return false;
  if (!keep_fitting(places, [&](const PlacedAllocation& one) { return one.place.phase == traceback.phase; })) {
    return false;
  }
  keep_fitting(places, [&](const PlacedAllocation& one) { return work_of(one.place) == traceback.work; });
  return true;
}

void add_places(MemoryPlace& found, const JobAllocations& allocations, const ErrorReport& report,
                const TracedEnd* end) {
  const auto& text = std::get<OutOfMemory>(report.what);
  const bool narrows = end != nullptr || !report.traceback.phase.empty();
  std::vector<AllocationPoint> points = nearest(allocations, text, found.size_matches);
  if (end != nullptr && end->at) {
    keep_fitting(points, [&](const AllocationPoint& point) { return (point.step == 1) == (end->at->step == 1); });
  }
  points.resize(std::min(points.size(), kMostDescribed));
  std::vector<PlacedAllocation> places;
  for (const AllocationPoint& point : points) {
    if (!narrows && places.size() == kMostPlaces) break;
    const PlacedAllocation placed = placed_at(point, allocations);
    const auto same = [&](const PlacedAllocation& known) {
      return known.place == placed.place && (end == nullptr || known.step == placed.step);
    };
    if (std::ranges::none_of(places, same)) places.push_back(placed);
  }
  if (found.size_matches) found.by_traceback = follow_traceback(places, report.traceback);
  if (end != nullptr) found.by_trace = follow_trace(places, *end);
  places.resize(std::min(places.size(), kMostPlaces));
  found.places = std::move(places);
}

void add_changes(MemoryPlace& found, const JobOfRun& job) {
  const std::int64_t limit_mib = *found.limit_bytes / kMiB;
  if (limit_mib < 1) return;
  train::TrainSections limited = job.arguments;
  limited.memory.device_memory_mib = limit_mib;
  plan::SearchOptions options = job.options;
  options.global_batch_size = job.arguments.schedule.global_batch_size;
  for (const plan::Candidate& candidate :
       plan::PlanSearch(limited, job.callbacks, job.profile, options).fitting_changes()) {
    found.changes.push_back({candidate.change, candidate.plan.memory.peak_reserved_bytes, candidate.plan.time.step_ns});
  }
}

}  // namespace

std::optional<std::int64_t> reserved_by(const OutOfMemory& text) {
  if (text.reserved) return text.reserved->bytes;
  if (!text.allocated || !text.reserved_unallocated) return std::nullopt;
  return text.allocated->bytes + text.reserved_unallocated->bytes;
}

std::optional<std::int64_t> capacity_of(const OutOfMemory& text) {
  const auto reserved = reserved_by(text);
  if (!reserved && !text.total) return std::nullopt;
  std::int64_t capacity = std::numeric_limits<std::int64_t>::max();
  if (reserved && text.free) capacity = *reserved + text.free->bytes;
  if (text.total) capacity = std::min(capacity, text.total->bytes);
  if (text.allowed) capacity = std::min(capacity, text.allowed->bytes);
  return capacity;
}

bool is_fragmented(const OutOfMemory& text) {
  const auto reserved = reserved_by(text);
  if (!reserved || !text.allocated || !text.tried) return false;
  return *reserved - text.allocated->bytes >= text.tried->bytes && text.tried->bytes > 0;
}

MemoryPlace place_of(const ErrorReport& report, const JobOfRun& job, const TracedEnd* end) {
  MemoryPlace found;
  const auto& text = std::get<OutOfMemory>(report.what);
  const auto rank =
      static_cast<int>(std::clamp<std::int64_t>(report.speaker.rank.value_or(0), 0, job.arguments.launch.ranks - 1));
  const JobAllocations allocations(job.arguments, job.callbacks, job.profile, rank);
  add_places(found, allocations, report, end);
  found.peak_allocated_bytes = allocations.peak_allocated_bytes();
  found.peak_reserved_bytes = allocations.peak_reserved_bytes();
  found.step_ns = plan::estimate_step(job.arguments, job.callbacks, job.profile, plan::Capacity::kLifted).time.step_ns;
  if (text.allocated && found.size_matches) {
    found.beyond_plan_bytes =
        std::max<std::int64_t>(0, text.allocated->bytes - found.places.front().allocated_before_bytes);
  }
  if (const auto capacity = capacity_of(text)) {
    found.limit_bytes = std::max<std::int64_t>(0, *capacity - found.beyond_plan_bytes);
    add_changes(found, job);
  }
  return found;
}

}  // namespace loom::explain
