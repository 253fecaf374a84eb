#include "engine/observe/report_step.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/observe/memory_points.h"
#include "engine/observe/step_groups.h"
#include "sharding/memory.h"

namespace loom::observe {
namespace {

using device::Entry;
using device::EntryKind;
using nlohmann::ordered_json;

// The lanes: the streams by their places, then the host.
constexpr std::array<std::string_view, device::kStreams + 1> kLanes{
    "compute",  "gather-copy-in", "gather",       "reduce-scatter", "all-reduce",       "h2d", "d2h",
    "exchange", "send-next",      "receive-next", "send-previous",  "receive-previous", "host"};
constexpr std::size_t kHostLane = device::kStreams;

// Texts, each once, numbered in order of first use.
class Texts {
 public:
  std::int64_t number_of(const std::string& text) {
    const auto [at, added] = numbers_.try_emplace(text, static_cast<std::int64_t>(texts_.size()));
    if (added) texts_.push_back(text);
    return at->second;
  }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::vector<std::string> texts_;
  std::unordered_map<std::string, std::int64_t> numbers_;
};

// What a lane shows: work, and the host's waits that took time.
bool is_drawn(const Entry& entry, const virtual_time::EntryTime& time) {
  return device::is_stream_work(entry.kind) || (device::is_on_host(entry.kind) && time.end > time.start);
}

class EntryArrays {
 public:
  EntryArrays(const device::Recording& recording, const virtual_time::RankTimes& times)
      : recording_(recording), times_(times), entry_groups_(recording) {}

  void add(std::size_t i) {
    const Entry& entry = recording_.entries[i];
    const std::string group = entry_groups_.next(entry);
    if (!is_drawn(entry, times_.entries[i])) return;
    const std::size_t lane = device::is_on_host(entry.kind) ? kHostLane : entry.stream.place();
    stream_.push_back(static_cast<std::int64_t>(lane));
    name_.push_back(names_.number_of(entry.kind == EntryKind::kHostWait ? "wait" : recording_.text(entry.name)));
    group_.push_back(group.empty() ? -1 : groups_.number_of(group));
    start_.push_back(times_.entries[i].start);
    duration_.push_back(times_.entries[i].end - times_.entries[i].start);
    bytes_.push_back(entry.kind == EntryKind::kCollective ? entry.cost.link_bytes : entry.cost.written_bytes);
  }

  std::int64_t size() const { return static_cast<std::int64_t>(stream_.size()); }

  ordered_json json() const {
    return {{"streams", kLanes},
            {"names", names_.texts()},
            {"groups", groups_.texts()},
            {"entries",
             {{"stream", stream_},
              {"name", name_},
              {"group", group_},
              {"start_ns", start_},
              {"duration_ns", duration_},
              {"bytes", bytes_}}}};
  }

 private:
  const device::Recording& recording_;
  const virtual_time::RankTimes& times_;
  EntryGroups entry_groups_;
  Texts names_, groups_;
  std::vector<std::int64_t> stream_, name_, group_, start_, duration_, bytes_;
};

std::int64_t drawn_entries(const device::Recording& recording, const virtual_time::RankTimes& times) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < times.entries.size(); ++i) count += is_drawn(recording.entries[i], times.entries[i]);
  return count;
}

// The larger of the two where it matters most: what is allocated, then what the categories sum up to.
bool smaller(const MemoryPoint& a, const MemoryPoint& b) { return a.allocated_bytes < b.allocated_bytes; }

// The largest of each run of `points` with one key.
template <class Key>
std::vector<MemoryPoint> largest_of_each(const std::vector<MemoryPoint>& points, Key key) {
  std::vector<MemoryPoint> kept;
  for (std::size_t begin = 0; begin < points.size();) {
    std::size_t end = begin + 1;
    while (end < points.size() && key(end) == key(begin)) ++end;
    kept.push_back(*std::max_element(points.begin() + static_cast<std::ptrdiff_t>(begin),
                                     points.begin() + static_cast<std::ptrdiff_t>(end), smaller));
    begin = end;
  }
  return kept;
}

std::vector<MemoryPoint> thinned(std::vector<MemoryPoint> points, std::int64_t limit) {
  points = largest_of_each(points, [&](std::size_t i) { return points[i].time_ns; });
  const auto count = static_cast<std::int64_t>(points.size());
  if (count <= limit) return points;
  return largest_of_each(points, [&](std::size_t i) { return static_cast<std::int64_t>(i) * limit / count; });
}

ordered_json peaks_json(const device::MemoryPeaks& peaks) {
  ordered_json json;
  for (const device::MemCategory c : sharding::kMemCategories) json[std::string(c.name())] = peaks.by_category[c];
  json["total"] = peaks.total_bytes;
  return json;
}

}  // namespace

ordered_json timeline_json(const ReportStep& step, std::int64_t limit) {
  const auto& [recording, times] = step;
  EntryArrays arrays(recording, times);
  for (std::size_t i = 0; i < times.entries.size() && arrays.size() < limit; ++i) arrays.add(i);
  ordered_json json = arrays.json();
  json["phases"] = ordered_json::array();
  for (const virtual_time::PhaseTime& phase : times.phases) {
    const std::string& name = recording.text(recording.entry(phase.entry).name);
    json["phases"].push_back({{"phase", name}, {"start_ns", phase.compute_ns}});
  }
  json["end_ns"] = times.end_ns;
  json["entries_of_step"] = drawn_entries(recording, times);
  json["entries_shown"] = arrays.size();
  return json;
}

ordered_json memory_over_step_json(const ReportStep& step, std::int64_t limit) {
  const std::vector<MemoryPoint> samples = at_virtual_time(step.recording, step.times);
  std::vector<MemoryPoint> points = thinned(samples, limit);
  if (!samples.empty()) {
    points.push_back(samples.back());
    points.back().time_ns = step.times.end_ns;
  }
  std::vector<std::int64_t> time, allocated, reserved;
  std::array<std::vector<std::int64_t>, device::kMemCategories> categories;
  for (const MemoryPoint& point : points) {
    time.push_back(point.time_ns);
    for (const device::MemCategory c : sharding::kMemCategories) {
      categories[c.place()].push_back(point.by_category[c]);
    }
    allocated.push_back(point.allocated_bytes);
    reserved.push_back(point.reserved_bytes);
  }
  ordered_json json;
  json["time_ns"] = time;
  json["by_category"] = ordered_json::object();
  for (const device::MemCategory c : sharding::kMemCategories) {
    json["by_category"][std::string(c.name()) + "_bytes"] = categories[c.place()];
  }
  json["allocated_bytes"] = allocated;
  json["reserved_bytes"] = reserved;
  json["peak_bytes"] = peaks_json(device::peaks_of(step.recording.memory));
  json["changes_of_step"] = samples.empty() ? 0 : samples.size() - 1;
  json["points_shown"] = points.size();
  return json;
}

namespace {

ordered_json groups_json(const std::vector<GroupSum>& groups) {
  ordered_json json = ordered_json::array();
  for (const GroupSum& sum : groups) {
    json.push_back({{"group", sum.group},
                    {"gathers", sum.gathers},
                    {"gathered_bytes", sum.gathered_bytes},
                    {"gather_ns", sum.gather_ns},
                    {"reductions", sum.reductions},
                    {"reduced_bytes", sum.reduced_bytes},
                    {"reduce_ns", sum.reduce_ns},
                    {"exposed_ns", sum.exposed_ns},
                    {"compute_ns", sum.compute_ns}});
  }
  return json;
}

ordered_json exposed_json(const std::vector<ExposedGap>& gaps) {
  std::vector<std::int64_t> start, duration;
  std::vector<std::string> group;
  for (const ExposedGap& gap : gaps) {
    start.push_back(gap.start_ns);
    duration.push_back(gap.end_ns - gap.start_ns);
    group.push_back(gap.group);
  }
  return {{"start_ns", start}, {"duration_ns", duration}, {"group", group}};
}

}  // namespace

void add_step(ordered_json& report, const ReportStep& step) {
  report["memory_over_step"] = memory_over_step_json(step);
  report["timeline"] = timeline_json(step);
  const StepGroups groups = groups_of_step(step.recording, step.times);
  report["timeline"]["exposed"] = exposed_json(groups.gaps);
  report["groups"] = groups_json(groups.groups);
}

}  // namespace loom::observe
