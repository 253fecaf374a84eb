#include "engine/explain/memory_place.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace loom::explain {
namespace {

using plan::AllocationPoint;
using plan::JobAllocations;

constexpr std::size_t kMostPlaces = 3;
constexpr std::size_t kMostDescribed = 512;  // points, among which different places are looked for
constexpr std::int64_t kMiB = 1 << 20;

bool has_size(const AllocationPoint& point, const ByteFigure& tried) {
  const std::int64_t segment = plan::segment_bytes_of(point.bytes);
  return segment >= tried.least() && segment <= tried.most();
}

std::int64_t distance(const AllocationPoint& point, const OutOfMemory& text) {
  return text.allocated ? std::abs(point.allocated_before_bytes - text.allocated->bytes) : 0;
}

// Those of the size, or all where there are none; the nearest first.
std::vector<AllocationPoint> nearest(const JobAllocations& allocations, const OutOfMemory& text, bool& size_matches) {
  std::vector<AllocationPoint> points;
  std::ranges::copy_if(allocations.points(), std::back_inserter(points),
                       [&](const AllocationPoint& point) { return text.tried && has_size(point, *text.tried); });
  size_matches = !points.empty();
  if (!size_matches && text.allocated) points = allocations.points();
  std::ranges::stable_sort(points, {}, [&](const AllocationPoint& point) { return distance(point, text); });
  return points;
}

void add_places(MemoryPlace& found, const JobAllocations& allocations, const OutOfMemory& text) {
  std::vector<AllocationPoint> points = nearest(allocations, text, found.size_matches);
  points.resize(std::min(points.size(), kMostDescribed));
  for (const AllocationPoint& point : points) {
    if (found.places.size() == kMostPlaces) return;
    const PlacedAllocation placed{.place = allocations.place_of(point),
                                  .bytes = point.bytes,
                                  .segment_bytes = plan::segment_bytes_of(point.bytes),
                                  .allocated_before_bytes = point.allocated_before_bytes,
                                  .step = point.step};
    const auto same = [&](const PlacedAllocation& known) { return known.place == placed.place; };
    if (std::ranges::none_of(found.places, same)) found.places.push_back(placed);
  }
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

MemoryPlace place_of(const OutOfMemory& text, const JobOfRun& job) {
  MemoryPlace found;
  const JobAllocations allocations(job.arguments, job.callbacks, job.profile);
  add_places(found, allocations, text);
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
