#include "engine/observe/schedule_view.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <span>
#include <string_view>
#include <utility>

#include "engine/core/shown_path.h"
#include "engine/train/step/marks.h"
#include "sharding/marks.h"
#include "sharding/memory.h"
#include "sharding/streams.h"

namespace loom::observe {
namespace {

using device::Entry;
using device::EntryKind;
using device::Mark;
using device::WorkKind;

// Puts entries and marks together: a mark says of which group and dtype the entries around it are.
class EventList {
 public:
  explicit EventList(const device::Recording& recording) : recording_(recording) {
    recording.visit([this](const Entry& entry) { add_entry(entry); }, [this](const Mark& mark) { add_mark(mark); });
  }

  std::vector<ScheduleEvent> take() { return std::move(events_); }

 private:
  void add_entry(const Entry& entry) {
    switch (entry.kind) {
      case EntryKind::kKernel:
        return add_kernel(entry);
      case EntryKind::kCopy:
      case EntryKind::kCollective:
        return add_item(entry, entry.stream.name());
      case EntryKind::kHostWork:
        return add_item(entry, "host");
      case EntryKind::kStreamWait:
      case EntryKind::kHostWait:
      case EntryKind::kPhase:
        return;
    }
  }

  void add_mark(const Mark& mark) {
    const std::string& subject = recording_.text(mark.subject);
    const std::string token(mark.kind.token());
    if (mark.kind == sharding::kGatherMark) {
      complete_gather(mark);
    } else if (mark.kind == sharding::kReduceScatterMark || mark.kind == sharding::kReduceScatterAllReduceMark) {
      reduced_ = {subject, mark.dtype};
    } else if (mark.kind == sharding::kGatheredMark) {
      events_.push_back(
          {std::string(device::StreamId::kCompute.name()), token, subject, std::exchange(copied_out_bytes_, 0)});
    } else if (mark.kind == sharding::kReshardMark || mark.kind == sharding::kReshardPostForwardMark ||
               mark.kind == sharding::kDropMark) {
      events_.push_back({"", token, subject});
    } else if (mark.kind == train::kBackwardMark || mark.kind == train::kOptimizerMark) {
      events_.push_back({"", token, ""});
      events_.back().has_group = false;
    }
  }

  // The mark follows the entries of its gather.
  void complete_gather(const Mark& mark) {
    for (auto event = events_.rbegin(); event != events_.rend(); ++event) {
      if (event->group != recording_.text(mark.subject) || (event->token != "AG" && event->token != "IN")) break;
      event->dtype = mark.dtype;
      event->prefetched = mark.prefetched;
    }
  }

  void add_kernel(const Entry& entry) {
    const std::string stream(entry.stream.name());
    if (entry.cost.work == sharding::kGatherCopyOut) {
      copied_out_bytes_ = entry.cost.written_bytes;
      return;
    }
    if (entry.cost.work == sharding::kReduceCopyIn) {
      events_.push_back({stream, "RIN", reduced_.group, entry.cost.written_bytes, reduced_.dtype});
      return;
    }
    if (events_.empty() || events_.back().token != "run") {
      events_.push_back({stream, "run", ""});
      events_.back().has_group = false;
    }
    events_.back().bytes += entry.cost.read_bytes + entry.cost.written_bytes;
    events_.back().kernels += 1;
  }

  void add_item(const Entry& entry, std::string_view on) {
    const std::string stream(on);
    const std::string& subject = recording_.text(entry.subject);
    const device::Cost& cost = entry.cost;
    // On the compute stream an operator communicates, not a group.
    const WorkKind work = entry.stream == device::StreamId::kCompute ? WorkKind::kOther : cost.work;
    if (work == sharding::kGatherCopyIn) {
      if (cost.written_bytes > 0) events_.push_back({stream, "IN", subject, cost.written_bytes});
    } else if (work == WorkKind::kAllGather) {
      if (cost.link_bytes > 0) events_.push_back({stream, "AG", subject, cost.link_bytes});
    } else if (work == WorkKind::kReduceScatter || work == WorkKind::kAllReduce) {
      const std::string_view token = work == WorkKind::kAllReduce ? "AR" : "RS";
      events_.push_back({stream, std::string(token), subject, cost.link_bytes, reduced_.dtype});
    } else {
      events_.push_back({stream, recording_.text(entry.name), subject, std::max(cost.written_bytes, cost.link_bytes)});
    }
  }

  struct Reduced {
    std::string group;
    std::optional<DType> dtype;
  };

  const device::Recording& recording_;
  std::vector<ScheduleEvent> events_;
  std::int64_t copied_out_bytes_ = 0;  // by a copy-out whose W is to come
  Reduced reduced_;                    // of the last reduction marked
};

// Groups that were gathered between the two events, and waited for there too; not the root's, which nobody can list:
// where its parameters are gathered again for backward, that is behind the prefetch of the module that ran last.
std::size_t used_before(std::span<const ScheduleEvent> events) {
  std::size_t used = 0;
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (events[i].token != "AG" || events[i].group.empty()) continue;
    const auto waited = [&](const ScheduleEvent& event) {
      return event.token == "W" && event.group == events[i].group;
    };
    if (std::ranges::any_of(events.subspan(i), waited)) ++used;
  }
  return used;
}

std::vector<WastedPrefetch> wasted_prefetches(const std::vector<ScheduleEvent>& events) {
  std::vector<WastedPrefetch> wasted;
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (events[i].token != "AG" || !events[i].prefetched) continue;
    bool hidden = false;
    for (std::size_t end = i + 1; end < events.size(); ++end) {
      const ScheduleEvent& event = events[end];
      hidden = hidden || event.token == "run";
      if (event.group != events[i].group || (event.token != "W" && event.token != "DROP")) continue;
      if (event.token == "DROP") {
        wasted.push_back({event.group, i + 1, end + 1, WastedPrefetch::Why::kNeverUsed});
      } else if (!hidden) {
        wasted.push_back({event.group, i + 1, end + 1, WastedPrefetch::Why::kNothingToHideBehind});
      } else if (const std::size_t used = used_before(std::span(events).subspan(i + 1, end - i - 1)); used > 0) {
        wasted.push_back({event.group, i + 1, end + 1, WastedPrefetch::Why::kOutOfOrder, used});
      }
      break;
    }
  }
  return wasted;
}

std::string shown_group(const ScheduleEvent& event) {
  if (!event.has_group) return "";
  return shown_path(event.group);
}

std::string shown_bytes(const ScheduleEvent& event) { return event.stream.empty() ? "" : fmt::to_string(event.bytes); }

std::string remark(const ScheduleEvent& event) {
  if (event.kernels > 0) return fmt::format("{} kernel{}", event.kernels, event.kernels == 1 ? "" : "s");
  std::string text = event.dtype ? std::string(name(*event.dtype)) : "";
  if (event.prefetched && event.token == "AG") text += ", prefetched";
  return text;
}

// Copies and host work of single parameters: events that are called by their own names.
bool is_item(const ScheduleEvent& event) {
  constexpr std::array<std::string_view, 11> kTokens{"IN", "AG", "W",    "RE", "REPF", "RIN",
                                                     "RS", "AR", "DROP", "B",  "O"};
  return event.token != "run" && std::ranges::find(kTokens, event.token) == kTokens.end();
}

// Events of one line: the first to the last have no other line between them.
struct ScheduleLine {
  std::size_t first = 0;
  std::size_t last = 0;
  std::int64_t items = 1;
  ScheduleEvent event;

  std::string number() const {
    return first == last ? fmt::to_string(first + 1) : fmt::format("{}-{}", first + 1, last + 1);
  }
};

// The group that the items before `next` work for: of the gather they prepare, or of the reduction they follow.
std::optional<std::string> group_of_items(const std::vector<ScheduleEvent>& events, std::size_t first,
                                          std::size_t next) {
  if (next < events.size() && (events[next].token == "IN" || events[next].token == "AG")) return events[next].group;
  const bool reduced = first > 0 && (events[first - 1].token == "RS" || events[first - 1].token == "AR");
  return reduced ? std::optional(events[first - 1].group) : std::nullopt;
}

// Items that follow one another are one line for each stream and name.
void fold_items(const std::vector<ScheduleEvent>& events, std::size_t first, std::size_t next,
                std::vector<ScheduleLine>& lines) {
  const std::size_t begin = lines.size();
  for (std::size_t i = first; i < next; ++i) {
    const auto same = std::find_if(
        lines.begin() + static_cast<std::ptrdiff_t>(begin), lines.end(),
        [&](const auto& line) { return line.event.stream == events[i].stream && line.event.token == events[i].token; });
    if (same == lines.end()) {
      lines.push_back({i, i, 1, events[i]});
      continue;
    }
    same->last = i;
    ++same->items;
    same->event.bytes += events[i].bytes;
  }
  const std::optional<std::string> group = group_of_items(events, first, next);
  for (std::size_t i = begin; i < lines.size(); ++i) {
    if (lines[i].items == 1) continue;
    lines[i].event.has_group = group.has_value() && lines[i].event.stream != "host";
    lines[i].event.group = lines[i].event.has_group ? *group : "";
  }
}

std::vector<ScheduleLine> lines_of(const std::vector<ScheduleEvent>& events) {
  std::vector<ScheduleLine> lines;
  for (std::size_t i = 0; i < events.size();) {
    std::size_t next = i + 1;
    if (!is_item(events[i])) {
      lines.push_back({i, i, 1, events[i]});
    } else {
      while (next < events.size() && is_item(events[next])) ++next;
      fold_items(events, i, next, lines);
    }
    i = next;
  }
  return lines;
}

// A line without blanks at its end.
void append_line(std::string& text, std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  text += line + "\n";
}

void append_events(std::string& text, const std::vector<ScheduleEvent>& events) {
  const std::vector<ScheduleLine> lines = lines_of(events);
  std::size_t width = std::string_view("group").size();
  std::size_t number_width = 5;
  for (const ScheduleLine& line : lines) {
    width = std::max(width, shown_group(line.event).size());
    number_width = std::max(number_width, line.number().size());
  }
  append_line(text, fmt::format("{:>{}}  {:<14}  {:<5}  {:<{}}  {:>12}", "#", number_width, "stream", "event", "group",
                                width, "bytes"));
  for (const ScheduleLine& line : lines) {
    const std::string about = line.items > 1 ? fmt::format("{} items", line.items) : remark(line.event);
    append_line(text,
                fmt::format("{:>{}}  {:<14}  {:<5}  {:<{}}  {:>12}  {}", line.number(), number_width, line.event.stream,
                            line.event.token, shown_group(line.event), width, shown_bytes(line.event), about));
  }
}

void append_streams(std::string& text, const std::vector<ScheduleEvent>& events) {
  struct Total {
    std::string_view stream;
    std::int64_t events = 0;
    std::int64_t bytes = 0;
  };
  std::vector<Total> totals;  // in order of first use
  for (const ScheduleEvent& event : events) {
    if (event.stream.empty()) continue;
    auto total = std::ranges::find(totals, event.stream, &Total::stream);
    if (total == totals.end()) total = totals.insert(total, {event.stream});
    total->events += 1;
    total->bytes += event.bytes;
  }
  for (const Total& total : totals) {
    text += fmt::format("{}: {} event{}, {} bytes\n", total.stream, total.events, total.events == 1 ? "" : "s",
                        total.bytes);
  }
}

}  // namespace

ScheduleView view_schedule(const device::Recording& recording) {
  const device::MemoryPeaks peaks = device::peaks_of(recording.memory);
  const auto peak = [&](device::MemCategory category) { return peaks.by_category[category]; };
  ScheduleView view;
  view.events = EventList(recording).take();
  view.wasted = wasted_prefetches(view.events);
  view.peak_unsharded_bytes = peak(device::MemCategory::kParameter);
  view.peak_gather_buffer_bytes = peak(sharding::kGatherBuffer);
  return view;
}

std::string to_text(const WastedPrefetch& wasted) {
  const std::string group = shown_path(wasted.group);
  switch (wasted.why) {
    case WastedPrefetch::Why::kNothingToHideBehind:
      return fmt::format(
          "prefetch of {} (event {}) had nothing to hide behind: no kernel ran before it was waited for (event {})",
          group, wasted.issued, wasted.ended);
    case WastedPrefetch::Why::kNeverUsed:
      return fmt::format("prefetch of {} (event {}) was never used and dropped (event {})", group, wasted.issued,
                         wasted.ended);
    case WastedPrefetch::Why::kOutOfOrder:
      return fmt::format(
          "prefetch of {} (event {}) came out of order: it was used at event {}, after {} group{} gathered later; list "
          "the modules in the order in which they run",
          group, wasted.issued, wasted.ended, wasted.overtaken, wasted.overtaken == 1 ? "" : "s");
  }
  return "";
}

std::string to_text(const ScheduleView& view) {
  std::string text =
      "schedule of one step, in the order the host issued it\n"
      "IN copy-in, AG all-gather, W waited for, RE resharded, RIN reduction's copy-in, RS reduce-scatter, AR "
      "all-reduce, "
      "B backward, O optimizer\n";
  append_events(text, view.events);
  append_streams(text, view.events);
  text += fmt::format("peak of unsharded parameters: {} bytes; of gather buffers: {} bytes\n",
                      view.peak_unsharded_bytes, view.peak_gather_buffer_bytes);
  for (const WastedPrefetch& wasted : view.wasted) text += to_text(wasted) + "\n";
  if (view.wasted.empty()) text += "no prefetch was wasted\n";
  return text;
}

}  // namespace loom::observe
