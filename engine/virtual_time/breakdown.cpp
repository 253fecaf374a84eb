#include "engine/virtual_time/breakdown.h"

#include <algorithm>
#include <array>
#include <set>

namespace loom::virtual_time {
namespace {

enum Doer : std::uint8_t { kCompute, kCollective, kOtherCopy };

struct Edge {
  std::int64_t time_ns = 0;
  Doer doer = kCompute;
  int step = 1;           // 1: begins, -1: ends
  std::size_t entry = 0;  // of the recording
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
    edges.push_back({from, doer_of(kind), 1, i});
    edges.push_back({to, doer_of(kind), -1, i});
  }
  std::ranges::sort(edges, {}, &Edge::time_ns);
  return edges;
}

AxisTime& time_of(std::vector<AxisTime>& axes, const std::string& axis) {
  const auto found = std::ranges::find(axes, axis, &AxisTime::axis);
  return found == axes.end() ? axes.emplace_back(AxisTime{axis}) : *found;
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

std::vector<AxisTime> exposed_by_axis(const device::Recording& recording, const RankTimes& times, std::int64_t begin_ns,
                                      std::int64_t end_ns) {
  std::vector<AxisTime> axes;
  std::set<std::size_t> collectives;  // that run
  int kernels = 0;
  std::int64_t now = begin_ns;
  const auto axis_of = [&](std::size_t entry) { return recording.text(recording.entries[entry].axis); };
  for (const Edge& edge : edges_of(recording, times, begin_ns, end_ns)) {
    if (kernels == 0 && !collectives.empty()) {
      time_of(axes, axis_of(*collectives.begin())).exposed_ns += edge.time_ns - now;
    }
    now = edge.time_ns;
    if (edge.doer == kCompute) kernels += edge.step;
    if (edge.doer != kCollective) continue;
    time_of(axes, axis_of(edge.entry));
    if (edge.step > 0) {
      collectives.insert(edge.entry);
    } else {
      collectives.erase(edge.entry);
    }
  }
  return axes;
}

}  // namespace loom::virtual_time
