#include "engine/observe/memory_points.h"

#include <algorithm>

namespace loom::observe {
namespace {

MemoryPoint point(const device::MemorySample& sample, std::int64_t time_ns) {
  return {time_ns, sample.by_category, sample.allocated_bytes, sample.reserved_bytes};
}

}  // namespace

std::vector<std::int64_t> compute_done(const device::Recording& recording, const virtual_time::RankTimes& times) {
  std::vector<std::int64_t> done{0};
  for (std::size_t i = 0; i < times.entries.size(); ++i) {
    const bool kernel = recording.entries[i].kind == device::EntryKind::kKernel;
    done.push_back(kernel ? std::max(done.back(), times.entries[i].end) : done.back());
  }
  return done;
}

std::vector<MemoryPoint> at_virtual_time(const device::Recording& recording, const virtual_time::RankTimes& times) {
  const std::vector<std::int64_t> done = compute_done(recording, times);
  std::vector<MemoryPoint> points;
  points.reserve(recording.memory.size());
  for (const device::MemorySample& sample : recording.memory) {
    points.push_back(point(sample, done[static_cast<std::size_t>(sample.entries)]));
  }
  return points;
}

std::vector<MemoryPoint> at_wall_time(const device::Recording& recording, std::int64_t origin_ns) {
  std::vector<MemoryPoint> points;
  points.reserve(recording.memory.size());
  for (const device::MemorySample& sample : recording.memory) {
    points.push_back(point(sample, std::max<std::int64_t>(0, sample.wall_ns - origin_ns)));
  }
  return points;
}

}  // namespace loom::observe
