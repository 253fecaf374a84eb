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

Doer doer_of(device::EntryKind kind) {
  if (kind == device::EntryKind::kCollective) return kCollective;
  return kind == device::EntryKind::kKernel ? kCompute : kOtherCopy;
}

std::vector<Edge> edges_of(const device::Recording& recording, const RankTimes& times, std::int64_t begin,
                           std::int64_t end) {
  std::vector<Edge> edges;
  for (std::size_t i = 0; i < times.entries.size(); ++i) {
    const device::EntryKind kind = recording.entries[i].kind;
    if (!device::is_stream_work(kind)) continue;
    const std::int64_t from = std::max(begin, times.entries[i].start);
    const std::int64_t to = std::min(end, times.entries[i].end);
    if (from >= to) continue;
    edges.push_back({from, doer_of(kind), 1});
    edges.push_back({to, doer_of(kind), -1});
  }
  std::ranges::sort(edges, {}, &Edge::time_ns);
  return edges;
}

}  // namespace

Breakdown break_down(const device::Recording& recording, const RankTimes& times, std::int64_t begin_ns,
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
  for (const Edge& edge : edges_of(recording, times, begin_ns, end_ns)) {
    pass_until(edge.time_ns);
    running[edge.doer] += edge.step;
  }
  pass_until(std::max(now, end_ns));
  return result;
}

}  // namespace loom::virtual_time
