#include "engine/virtual_time/breakdown.h"

#include <algorithm>
#include <array>

namespace loom::virtual_time {
namespace {

enum Doer : std::uint8_t { kCompute, kCollective, kOtherCopy };

struct Edge {
  std::int64_t time_ns = 0;
  Doer doer = kCompute;
  int step = 1;  // 1: begins, -1: ends
};

Doer doer_of(const device::TimelineEntry& entry) {
  if (entry.group >= 0) return kCollective;
  return entry.stream == device::StreamId::kCompute ? kCompute : kOtherCopy;
}

std::vector<Edge> edges_of(const device::Timeline& timeline, const RankTimes& times, std::int64_t begin,
                           std::int64_t end) {
  std::vector<Edge> edges;
  for (std::size_t i = 0; i < times.entries.size(); ++i) {
    const device::TimelineEntry& entry = timeline.entries()[i];
    if (entry.kind != device::TimelineKind::kWork) continue;
    const std::int64_t from = std::max(begin, times.entries[i].start);
    const std::int64_t to = std::min(end, times.entries[i].end);
    if (from >= to) continue;
    edges.push_back({from, doer_of(entry), 1});
    edges.push_back({to, doer_of(entry), -1});
  }
  std::ranges::sort(edges, {}, &Edge::time_ns);
  return edges;
}

}  // namespace

Breakdown break_down(const device::Timeline& timeline, const RankTimes& times, std::int64_t begin_ns,
                     std::int64_t end_ns) {
  Breakdown result;
  std::array<int, 3> running{};
  std::int64_t now = begin_ns;
  const auto pass_until = [&](std::int64_t time) {
    const std::int64_t span = time - now;
    now = time;
    if (running[kCollective] > 0) result.comm_ns += span;
    if (running[kCompute] > 0) {
      result.compute_ns += span;
    } else if (running[kCollective] > 0) {
      result.exposed_comm_ns += span;
    } else if (running[kOtherCopy] > 0) {
      result.exposed_copy_ns += span;
    } else {
      result.idle_ns += span;
    }
  };
  for (const Edge& edge : edges_of(timeline, times, begin_ns, end_ns)) {
    pass_until(edge.time_ns);
    running[edge.doer] += edge.step;
  }
  pass_until(std::max(now, end_ns));
  return result;
}

}  // namespace loom::virtual_time
