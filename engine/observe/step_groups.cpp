#include "engine/observe/step_groups.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "engine/core/shown_path.h"
#include "sharding/streams.h"

namespace loom::observe {
namespace {

using device::Entry;
using device::EntryKind;
using virtual_time::EntryTime;

class Sums {
 public:
  GroupSum& of(const std::string& group) {
    const auto [at, added] = places_.try_emplace(group, sums_.size());
    if (added) sums_.push_back({.group = group});
    return sums_[at->second];
  }
  std::vector<GroupSum> take() { return std::move(sums_); }

 private:
  std::vector<GroupSum> sums_;
  std::map<std::string, std::size_t> places_;
};

void add(GroupSum& sum, const Entry& entry, const EntryTime& time) {
  const std::int64_t duration = time.end - time.start;
  if (entry.kind == EntryKind::kKernel) {
    sum.compute_ns += duration;
  } else if (entry.collective == device::CollectiveKind::kAllToAll || entry.stream == device::StreamId::kCompute) {
    return;  // the optimizer's or an operator's: of no group
  } else if (entry.collective == device::CollectiveKind::kAllGather) {
    ++sum.gathers;
    sum.gathered_bytes = std::max(sum.gathered_bytes, entry.bytes);
    sum.gather_ns += duration;
  } else {
    ++sum.reductions;
    sum.reduced_bytes = std::max(sum.reduced_bytes, entry.bytes);
    sum.reduce_ns += duration;
  }
}

struct Edge {
  std::int64_t time_ns = 0;
  std::size_t entry = 0;
  bool begins = true;
};

// Begins and ends of kernels and collectives that take time.
std::vector<Edge> edges_of(const device::Recording& recording, const virtual_time::RankTimes& times) {
  std::vector<Edge> edges;
  for (std::size_t i = 0; i < times.entries.size(); ++i) {
    const EntryKind kind = recording.entries[i].kind;
    if (kind != EntryKind::kKernel && kind != EntryKind::kCollective) continue;
    if (times.entries[i].start >= times.entries[i].end) continue;
    edges.push_back({times.entries[i].start, i, true});
    edges.push_back({times.entries[i].end, i, false});
  }
  std::ranges::stable_sort(edges, {}, &Edge::time_ns);
  return edges;
}

std::vector<ExposedGap> exposed_gaps(const device::Recording& recording, const virtual_time::RankTimes& times,
                                     const std::vector<std::string>& groups) {
  std::vector<ExposedGap> gaps;
  std::set<std::pair<std::int64_t, std::size_t>> collectives;  // that run: begin and entry
  std::int64_t kernels = 0;
  std::int64_t now = 0;
  for (const Edge& edge : edges_of(recording, times)) {
    if (edge.time_ns > now && kernels == 0 && !collectives.empty()) {
      const std::string& group = groups[collectives.begin()->second];
      if (gaps.empty() || gaps.back().end_ns != now || gaps.back().group != group) gaps.push_back({now, now, group});
      gaps.back().end_ns = edge.time_ns;
    }
    now = edge.time_ns;
    if (recording.entries[edge.entry].kind == EntryKind::kKernel) {
      kernels += edge.begins ? 1 : -1;
    } else if (edge.begins) {
      collectives.emplace(times.entries[edge.entry].start, edge.entry);
    } else {
      collectives.erase({times.entries[edge.entry].start, edge.entry});
    }
  }
  return gaps;
}

}  // namespace

std::string EntryGroups::next(const Entry& entry) {
  if (entry.kind == EntryKind::kStreamWait && entry.stream == device::StreamId::kCompute) {
    const Entry& awaited = recording_.entry(entry.other);
    if (device::is_stream_work(awaited.kind) && awaited.stream == sharding::kGatherStream) {
      waited_for_ = shown_path(recording_.text(awaited.subject));
    }
  }
  if (entry.kind == EntryKind::kPhase && recording_.text(entry.name) == "optimizer") waited_for_.clear();
  if (entry.kind == EntryKind::kCopy || entry.kind == EntryKind::kCollective) {
    return shown_path(recording_.text(entry.subject));
  }
  return entry.kind == EntryKind::kKernel ? waited_for_ : "";
}

StepGroups groups_of_step(const device::Recording& recording, const virtual_time::RankTimes& times) {
  EntryGroups walk(recording);
  std::vector<std::string> groups;
  Sums sums;
  for (std::size_t i = 0; i < times.entries.size(); ++i) {
    const Entry& entry = recording.entries[i];
    groups.push_back(walk.next(entry));
    if (groups.back().empty() || entry.kind == EntryKind::kCopy) continue;
    add(sums.of(groups.back()), entry, times.entries[i]);
  }
  StepGroups step{.groups = {}, .gaps = exposed_gaps(recording, times, groups)};
  for (const ExposedGap& gap : step.gaps) sums.of(gap.group).exposed_ns += gap.end_ns - gap.start_ns;
  step.groups = sums.take();
  return step;
}

}  // namespace loom::observe
