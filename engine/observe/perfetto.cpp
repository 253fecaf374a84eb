#include "engine/observe/perfetto.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "engine/core/shown_path.h"
#include "sharding/memory.h"

namespace loom::observe {
namespace {

using device::Entry;
using device::EntryKind;
using device::StreamId;
using Json = nlohmann::ordered_json;

enum Lane : int { kPhases, kHost, kFirstStream };
constexpr int kLanes = kFirstStream + static_cast<int>(device::kStreams);

constexpr std::int32_t kNoSlice = -1;

int lane_of(StreamId stream) { return kFirstStream + static_cast<int>(stream.place()); }

double in_microseconds(std::int64_t ns) { return static_cast<double>(ns) / 1000.0; }

struct Slice {
  int lane = 0;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  std::string name;
  std::string_view category;
  Json arguments = Json::object();
};

// A place on a lane.
struct Place {
  int lane = 0;
  std::int64_t time_ns = 0;
};

// All events of a trace, as text.
class Events {
 public:
  void add(const Json& event) {
    text_ += text_.empty() ? "\n" : ",\n";
    text_ += event.dump();
  }
  std::int64_t next_arrow() { return arrows_++; }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::int64_t arrows_ = 1;
};

class RankWriter {
 public:
  RankWriter(const TracedRank& rank, const TraceContent& content, Events& events)
      : rank_(rank),
        recording_(*rank.recording),
        entries_(recording_.entries),
        content_(content),
        events_(events),
        slice_of_(entries_.size(), kNoSlice) {}

  void write() {
    add_steps();
    add_entries();
    write_names();
    for (const Slice& slice : slices_) write_slice(slice);
    write_arrows();
    if (content_.memory) write_counters();
  }

 private:
  const virtual_time::EntryTime& time(std::size_t index) const { return rank_.times.entries[index]; }
  std::string title(std::size_t index) const;

  void add_steps();
  void add_step(std::size_t first_phase, std::size_t end_phase, std::size_t number);
  void add_phase(const virtual_time::PhaseTime& from, const virtual_time::PhaseTime& to);
  const std::string& text_of(const virtual_time::PhaseTime& phase) const {
    return recording_.text(recording_.entry(phase.entry).name);
  }

  void add_entries();
  // After this entry.
  std::int64_t host_goes_on(std::size_t index) const;
  void add_work(std::size_t index);
  void join_kernel(std::size_t index);
  void add_wait(std::size_t index);
  void add_host(std::size_t index);
  void add_dispatch(std::size_t index);
  Slice slice_for(std::size_t index, int lane, std::string name, std::string_view category) const;
  void describe_work(const Entry& entry, Json& arguments) const;
  std::string awaited(std::size_t index) const;

  void write_names();
  void write_slice(const Slice& slice);
  void write_arrows();
  void write_arrow(std::size_t from, std::size_t to, std::int64_t at_ns);
  void write_counters();
  void write_counter(std::int64_t time_ns, const std::string& name, std::int64_t bytes);
  Json event(std::string_view kind, int lane, std::int64_t time_ns) const {
    return {{"ph", kind}, {"pid", rank_.process}, {"tid", lane}, {"ts", in_microseconds(time_ns)}};
  }

  // The entry it waits for; none for what does not wait.
  std::optional<std::size_t> source(std::size_t index) const {
    if (entries_[index].other == device::kDone) return std::nullopt;
    return static_cast<std::size_t>(entries_[index].other);
  }

  const TracedRank& rank_;
  const device::Recording& recording_;
  const std::vector<Entry>& entries_;
  const TraceContent& content_;
  Events& events_;
  std::vector<Slice> slices_;
  std::vector<std::int32_t> slice_of_;  // of each entry
  std::int32_t kernels_ = kNoSlice;     // the slice that takes the next kernel, where kernels are joined
  std::int64_t joined_ = 0;             // kernels in it
  std::int64_t host_ns_ = 0;            // the host is done with the entry before
};

// --- Steps and their phases

void RankWriter::add_steps() {
  const auto& phases = rank_.times.phases;
  std::size_t first = 0;
  std::size_t number = 0;
  for (std::size_t i = 0; i < phases.size(); ++i) {
    if (text_of(phases[i]) != "end") continue;
    add_step(first, i, number++);
    first = i + 1;
  }
}

void RankWriter::add_step(std::size_t first, std::size_t end, std::size_t number) {
  const auto& phases = rank_.times.phases;
  Slice step{.lane = kPhases,
             .start_ns = phases[first].compute_ns,
             .end_ns = phases[end].compute_ns,
             .name = "step",
             .category = "step"};
  if (end + 1 == phases.size()) step.end_ns = std::max(step.end_ns, rank_.times.end_ns);
  if (number < rank_.steps.size()) step.name = fmt::format("step {}", rank_.steps[number]);
  slices_.push_back(std::move(step));
  for (std::size_t i = first; i < end; ++i) add_phase(phases[i], phases[i + 1]);
}

void RankWriter::add_phase(const virtual_time::PhaseTime& from, const virtual_time::PhaseTime& to) {
  Slice phase{.lane = kPhases,
              .start_ns = from.compute_ns,
              .end_ns = to.compute_ns,
              .name = text_of(from),
              .category = "phase"};
  phase.arguments = {{"issued_from_us", in_microseconds(from.host_ns)}, {"issued_to_us", in_microseconds(to.host_ns)}};
  slices_.push_back(std::move(phase));
}

// --- Entries

std::string RankWriter::title(std::size_t index) const {
  const Entry& entry = entries_[index];
  const std::string& subject = recording_.text(entry.subject);
  const bool of_a_group = entry.kind == EntryKind::kCollective || entry.kind == EntryKind::kCopy;
  if (subject.empty()) return recording_.text(entry.name) + (of_a_group ? " (root)" : "");
  return fmt::format("{} {}", recording_.text(entry.name), subject);
}

void RankWriter::add_entries() {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const EntryKind kind = entries_[i].kind;
    if (device::is_on_stream(kind)) add_dispatch(i);
    if (device::is_stream_work(kind)) add_work(i);
    if (kind == EntryKind::kStreamWait) add_wait(i);
    if (device::is_on_host(kind)) add_host(i);
    if (kind == EntryKind::kPhase) kernels_ = kNoSlice;
    host_ns_ = std::max(host_ns_, host_goes_on(i));
  }
}

std::int64_t RankWriter::host_goes_on(std::size_t index) const {
  const Entry& entry = entries_[index];
  const bool runs_it = device::is_on_host(entry.kind) || entry.kind == EntryKind::kPhase ||
                       rank_.on_host == OnHost::kAllStreams ||
                       (rank_.on_host == OnHost::kCompute && entry.stream == StreamId::kCompute);
  return runs_it ? time(index).end : time(index).issued;
}

Slice RankWriter::slice_for(std::size_t index, int lane, std::string name, std::string_view category) const {
  Slice slice{.lane = lane,
              .start_ns = time(index).start,
              .end_ns = time(index).end,
              .name = std::move(name),
              .category = category};
  if (entries_[index].site != 0) slice.arguments["call_site"] = recording_.text(entries_[index].site);
  return slice;
}

void RankWriter::add_work(std::size_t index) {
  const Entry& entry = entries_[index];
  const bool kernel = entry.kind == EntryKind::kKernel;
  if (kernel && !content_.kernels) return join_kernel(index);
  kernels_ = kNoSlice;
  Slice slice = slice_for(index, lane_of(entry.stream), title(index),
                          entry.kind == EntryKind::kCollective ? "collective" : (kernel ? "kernel" : "copy"));
  describe_work(entry, slice.arguments);
  slice_of_[index] = static_cast<std::int32_t>(slices_.size());
  slices_.push_back(std::move(slice));
}

// Into the slice of the kernels before it, where there is one.
void RankWriter::join_kernel(std::size_t index) {
  if (kernels_ == kNoSlice) {
    kernels_ = static_cast<std::int32_t>(slices_.size());
    joined_ = 1;
    Slice slice{.lane = lane_of(StreamId::kCompute),
                .start_ns = time(index).start,
                .end_ns = time(index).end,
                .name = "1 kernel",
                .category = "kernel"};
    slices_.push_back(std::move(slice));
  } else {
    Slice& slice = slices_[static_cast<std::size_t>(kernels_)];
    slice.end_ns = std::max(slice.end_ns, time(index).end);
    slice.name = fmt::format("{} kernels", ++joined_);
  }
  slice_of_[index] = kernels_;
}

void RankWriter::describe_work(const Entry& entry, Json& arguments) const {
  if (entry.kind == EntryKind::kCollective) {
    const std::vector<int>& ranks = recording_.group(entry.group);
    const std::string& subject = recording_.text(entry.subject);
    arguments["group"] = shown_path(subject);
    arguments["ranks"] = in_short(ranks);
    arguments["members"] = ranks.size();
    arguments["bytes"] = entry.bytes;
    arguments["received_bytes"] = entry.cost.link_bytes;
    return;
  }
  arguments["read_bytes"] = entry.cost.read_bytes;
  arguments["written_bytes"] = entry.cost.written_bytes;
  if (entry.cost.flops > 0) arguments["flops"] = entry.cost.flops;
  if (!content_.shapes || entry.cost.m == 0) return;
  arguments["dtype"] = name(entry.cost.dtype);
  arguments["batch"] = entry.cost.batch;
  arguments["m"] = entry.cost.m;
  arguments["n"] = entry.cost.n;
  arguments["k"] = entry.cost.k;
}

std::string RankWriter::awaited(std::size_t index) const {
  const auto other = source(index);
  return other ? title(*other) : std::string("earlier work");
}

void RankWriter::add_wait(std::size_t index) {
  if (entries_[index].stream == StreamId::kCompute) kernels_ = kNoSlice;
  if (!content_.waits || time(index).start >= time(index).end) return;
  slices_.push_back(slice_for(index, lane_of(entries_[index].stream), "wait for " + awaited(index), "wait"));
}

void RankWriter::add_host(std::size_t index) {
  const bool wait = entries_[index].kind == EntryKind::kHostWait;
  if (wait) kernels_ = kNoSlice;
  if (!content_.host || time(index).start >= time(index).end) return;
  Slice slice = wait ? slice_for(index, kHost, "wait for " + awaited(index), "wait")
                     : slice_for(index, kHost, title(index), "host");
  if (!wait) describe_work(entries_[index], slice.arguments);
  slice_of_[index] = static_cast<std::int32_t>(slices_.size());
  slices_.push_back(std::move(slice));
}

void RankWriter::add_dispatch(std::size_t index) {
  if (!content_.host || !content_.kernels || host_ns_ >= time(index).issued) return;
  const bool wait = entries_[index].kind == EntryKind::kStreamWait;
  slices_.push_back({.lane = kHost,
                     .start_ns = host_ns_,
                     .end_ns = time(index).issued,
                     .name = "issue " + (wait ? "wait for " + awaited(index) : title(index)),
                     .category = "dispatch"});
}

// --- Output

void RankWriter::write_names() {
  events_.add({{"ph", "M"}, {"pid", rank_.process}, {"name", "process_name"}, {"args", {{"name", rank_.name}}}});
  events_.add(
      {{"ph", "M"}, {"pid", rank_.process}, {"name", "process_sort_index"}, {"args", {{"sort_index", rank_.process}}}});
  std::array<std::string_view, kLanes> names{"phases", "host"};
  for (const Entry& entry : entries_) {
    if (device::is_on_stream(entry.kind)) names[static_cast<std::size_t>(lane_of(entry.stream))] = entry.stream.name();
  }
  std::array<bool, kLanes> used{};
  for (const Slice& slice : slices_) used[static_cast<std::size_t>(slice.lane)] = true;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!used[static_cast<std::size_t>(lane)]) continue;
    for (const auto& [what, arguments] :
         {std::pair{"thread_name", Json{{"name", names[static_cast<std::size_t>(lane)]}}},
          std::pair{"thread_sort_index", Json{{"sort_index", lane}}}}) {
      events_.add({{"ph", "M"}, {"pid", rank_.process}, {"tid", lane}, {"name", what}, {"args", arguments}});
    }
  }
}

void RankWriter::write_slice(const Slice& slice) {
  Json json = event("X", slice.lane, slice.start_ns);
  json["dur"] = in_microseconds(slice.end_ns - slice.start_ns);
  json["name"] = slice.name;
  json["cat"] = slice.category;
  if (!slice.arguments.empty()) json["args"] = slice.arguments;
  events_.add(json);
}

void RankWriter::write_arrows() {
  std::array<std::vector<std::size_t>, device::kStreams> waiting;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    auto& waits = waiting[entry.stream.place()];
    if (entry.kind == EntryKind::kStreamWait) waits.push_back(i);
    if (entry.kind == EntryKind::kHostWait && source(i)) write_arrow(*source(i), i, time(i).end - 1);
    if (!device::is_stream_work(entry.kind)) continue;
    for (const std::size_t wait : waits) {
      if (const auto from = source(wait)) write_arrow(*from, i, time(i).start);
    }
    waits.clear();
  }
}

// From the last ns of one entry to a time in another; none where either has no length or is not shown.
void RankWriter::write_arrow(std::size_t from, std::size_t to, std::int64_t at_ns) {
  const auto shown = [&](std::size_t i) { return slice_of_[i] != kNoSlice && time(i).start < time(i).end; };
  const std::int64_t from_ns = time(from).end - 1;
  if (!shown(from) || !shown(to) || at_ns < from_ns) return;
  const std::int64_t id = events_.next_arrow();
  Json json = event("s", slices_[static_cast<std::size_t>(slice_of_[from])].lane, from_ns);
  json.update({{"id", id}, {"name", "wait"}, {"cat", "wait"}});
  events_.add(json);
  json = event("f", slices_[static_cast<std::size_t>(slice_of_[to])].lane, at_ns);
  json.update({{"id", id}, {"name", "wait"}, {"cat", "wait"}, {"bp", "e"}});
  events_.add(json);
}

void RankWriter::write_counters() {
  const MemoryPoint* before = nullptr;
  for (const MemoryPoint& point : rank_.memory) {
    for (const device::MemCategory c : sharding::kMemCategories) {
      if (before != nullptr && before->by_category[c] == point.by_category[c]) continue;
      write_counter(point.time_ns, fmt::format("memory: {}", c.name()), point.by_category[c]);
    }
    if (before == nullptr || before->allocated_bytes != point.allocated_bytes) {
      write_counter(point.time_ns, "memory: allocated", point.allocated_bytes);
    }
    if (before == nullptr || before->reserved_bytes != point.reserved_bytes) {
      write_counter(point.time_ns, "memory: reserved", point.reserved_bytes);
    }
    before = &point;
  }
}

void RankWriter::write_counter(std::int64_t time_ns, const std::string& name, std::int64_t bytes) {
  events_.add({{"ph", "C"},
               {"pid", rank_.process},
               {"ts", in_microseconds(time_ns)},
               {"name", name},
               {"args", {{"bytes", bytes}}}});
}

}  // namespace

std::string perfetto_trace(std::span<const TracedRank> ranks, const TraceContent& content, const Json& about) {
  Events events;
  for (const TracedRank& rank : ranks) RankWriter(rank, content, events).write();
  return fmt::format("{{\"displayTimeUnit\":\"ns\",\n\"otherData\":{},\n\"traceEvents\":[{}\n]}}\n", about.dump(),
                     events.text());
}

std::string in_short(const std::vector<int>& ranks) {
  if (ranks.size() < 3) return fmt::format("{}", fmt::join(ranks, ", "));
  const int step = ranks[1] - ranks[0];
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    if (ranks[i] - ranks[i - 1] != step) return fmt::format("{}", fmt::join(ranks, ", "));
  }
  if (step == 1) return fmt::format("{}-{}", ranks.front(), ranks.back());
  return fmt::format("{}-{} in steps of {}", ranks.front(), ranks.back(), step);
}

}  // namespace loom::observe
