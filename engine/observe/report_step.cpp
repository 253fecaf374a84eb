#include "engine/observe/report_step.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace loom::observe {
namespace {

using device::StreamId;
using device::TimelineEntry;
using device::TimelineKind;
using nlohmann::ordered_json;

// The lanes: the streams in StreamId's order, then the host.
constexpr std::array<std::string_view, device::kStreams + 1> kLanes{
    "compute", "gather-copy-in", "gather", "reduce-scatter", "all-reduce", "h2d", "d2h", "host"};
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

bool of_host(const TimelineEntry& entry) {
  return entry.kind == TimelineKind::kHostWork || entry.kind == TimelineKind::kHostWait;
}

// What a lane shows: work, and the host's waits that took time.
bool is_drawn(const TimelineEntry& entry, const virtual_time::EntryTime& time) {
  return entry.kind == TimelineKind::kWork || (of_host(entry) && time.end > time.start);
}

bool has_group_of_its_own(const TimelineEntry& entry) {
  return entry.kind == TimelineKind::kWork && entry.stream != StreamId::kCompute;
}

std::string shown_group(const std::string& path) { return path.empty() ? "(root)" : path; }

class TimelineArrays {
 public:
  TimelineArrays(const device::Timeline& timeline, const virtual_time::RankTimes& times)
      : timeline_(timeline), times_(times) {}

  void add(std::size_t i) {
    const TimelineEntry& entry = timeline_.entries()[i];
    if (entry.kind == TimelineKind::kStreamWait && entry.stream == StreamId::kCompute) note_wait(entry);
    if (entry.kind == TimelineKind::kMark && timeline_.text(entry.name) == "optimizer") waited_for_ = -1;
    if (!is_drawn(entry, times_.entries[i])) return;
    const std::size_t lane = of_host(entry) ? kHostLane : static_cast<std::size_t>(entry.stream);
    stream_.push_back(static_cast<std::int64_t>(lane));
    name_.push_back(names_.number_of(entry.kind == TimelineKind::kHostWait ? "wait" : timeline_.text(entry.name)));
    group_.push_back(group_of(entry));
    start_.push_back(times_.entries[i].start);
    duration_.push_back(times_.entries[i].end - times_.entries[i].start);
    bytes_.push_back(entry.group >= 0 ? entry.cost.link_bytes : entry.cost.written_bytes);
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
  // The compute stream waits for a gather: what it runs from now on is that group's.
  void note_wait(const TimelineEntry& wait) {
    const std::int64_t index = wait.other - timeline_.first_entry();
    if (index < 0) return;
    const TimelineEntry& awaited = timeline_.entries()[static_cast<std::size_t>(index)];
    if (awaited.kind == TimelineKind::kWork && awaited.stream == StreamId::kGather) {
      waited_for_ = groups_.number_of(shown_group(timeline_.text(awaited.subject)));
    }
  }

  std::int64_t group_of(const TimelineEntry& entry) {
    if (of_host(entry)) return -1;
    if (has_group_of_its_own(entry)) return groups_.number_of(shown_group(timeline_.text(entry.subject)));
    return waited_for_;
  }

  const device::Timeline& timeline_;
  const virtual_time::RankTimes& times_;
  Texts names_, groups_;
  std::int64_t waited_for_ = -1;
  std::vector<std::int64_t> stream_, name_, group_, start_, duration_, bytes_;
};

std::int64_t drawn_entries(const device::Timeline& timeline, const virtual_time::RankTimes& times) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < times.entries.size(); ++i) count += is_drawn(timeline.entries()[i], times.entries[i]);
  return count;
}

// When the compute stream is done with the first n entries, for every n.
std::vector<std::int64_t> compute_done(const device::Timeline& timeline, const virtual_time::RankTimes& times) {
  std::vector<std::int64_t> done{0};
  for (std::size_t i = 0; i < times.entries.size(); ++i) {
    const TimelineEntry& entry = timeline.entries()[i];
    const bool compute = entry.kind == TimelineKind::kWork && entry.stream == StreamId::kCompute;
    done.push_back(compute ? std::max(done.back(), times.entries[i].end) : done.back());
  }
  return done;
}

struct Point {
  std::int64_t time_ns = 0;
  const device::MemorySample* sample = nullptr;
};

// The larger of the two where it matters most: what is allocated, then what the categories sum up to.
bool smaller(const Point& a, const Point& b) { return a.sample->allocated_bytes < b.sample->allocated_bytes; }

// The largest of each run of `points` with one key.
template <class Key>
std::vector<Point> largest_of_each(const std::vector<Point>& points, Key key) {
  std::vector<Point> kept;
  for (std::size_t begin = 0; begin < points.size();) {
    std::size_t end = begin + 1;
    while (end < points.size() && key(end) == key(begin)) ++end;
    kept.push_back(*std::max_element(points.begin() + static_cast<std::ptrdiff_t>(begin),
                                     points.begin() + static_cast<std::ptrdiff_t>(end), smaller));
    begin = end;
  }
  return kept;
}

std::vector<Point> thinned(std::vector<Point> points, std::int64_t limit) {
  points = largest_of_each(points, [&](std::size_t i) { return points[i].time_ns; });
  const auto count = static_cast<std::int64_t>(points.size());
  if (count <= limit) return points;
  return largest_of_each(points, [&](std::size_t i) { return static_cast<std::int64_t>(i) * limit / count; });
}

std::vector<Point> points_of(const device::Timeline& timeline, const virtual_time::RankTimes& times,
                             std::span<const device::MemorySample> samples) {
  const std::vector<std::int64_t> done = compute_done(timeline, times);
  std::vector<Point> points;
  points.reserve(samples.size());
  for (const device::MemorySample& sample : samples) {
    points.push_back({done[static_cast<std::size_t>(sample.entries)], &sample});
  }
  return points;
}

}  // namespace

ordered_json timeline_json(const ReportStep& step, std::int64_t limit) {
  const auto& [timeline, times, memory] = step;
  TimelineArrays arrays(timeline, times);
  for (std::size_t i = 0; i < times.entries.size() && arrays.size() < limit; ++i) arrays.add(i);
  ordered_json json = arrays.json();
  json["phases"] = ordered_json::array();
  for (const virtual_time::MarkTime& mark : times.marks) {
    const TimelineEntry& entry = timeline.entries()[static_cast<std::size_t>(mark.entry)];
    json["phases"].push_back({{"phase", timeline.text(entry.name)}, {"start_ns", mark.compute_ns}});
  }
  json["end_ns"] = times.end_ns;
  json["entries_of_step"] = drawn_entries(timeline, times);
  json["entries_shown"] = arrays.size();
  return json;
}

ordered_json memory_over_step_json(const ReportStep& step, std::int64_t limit) {
  const auto& [timeline, times, samples] = step;
  std::vector<Point> points = thinned(points_of(timeline, times, samples), limit);
  if (!samples.empty()) points.push_back({times.end_ns, &samples.back()});
  std::vector<std::int64_t> time, allocated, reserved;
  std::array<std::vector<std::int64_t>, device::kMemCategories> categories;
  for (const Point& point : points) {
    time.push_back(point.time_ns);
    for (std::size_t c = 0; c < categories.size(); ++c) categories[c].push_back(point.sample->by_category[c]);
    allocated.push_back(point.sample->allocated_bytes);
    reserved.push_back(point.sample->reserved_bytes);
  }
  ordered_json json;
  json["time_ns"] = time;
  json["by_category"] = ordered_json::object();
  for (std::size_t c = 0; c < categories.size(); ++c) {
    json["by_category"][std::string(device::name(static_cast<device::MemCategory>(c))) + "_bytes"] = categories[c];
  }
  json["allocated_bytes"] = allocated;
  json["reserved_bytes"] = reserved;
  json["changes_of_step"] = samples.empty() ? 0 : samples.size() - 1;
  json["points_shown"] = points.size();
  return json;
}

void add_step(ordered_json& report, const ReportStep& step) {
  report["memory_over_step"] = memory_over_step_json(step);
  report["timeline"] = timeline_json(step);
}

}  // namespace loom::observe
