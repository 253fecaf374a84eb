#include "engine/observe/schedule_view.h"

#include <algorithm>
#include <fmt/format.h>
#include <string_view>
#include <utility>

namespace loom::observe {
namespace {

using device::TraceEntry;

constexpr std::string_view kCompute = "compute";

// Puts a trace's entries together: a mark says of which group and dtype the items around it are.
class EventList {
 public:
  void add(const TraceEntry& entry) {
    if (entry.stream.empty()) {
      add_mark(entry);
    } else if (entry.stream == kCompute) {
      add_kernel(entry);
    } else {
      add_item(entry);
    }
  }

  std::vector<ScheduleEvent> take() { return std::move(events_); }

 private:
  void add_mark(const TraceEntry& mark) {
    if (mark.name == "AG") {
      complete_gather(mark);
    } else if (mark.name == "RS" || mark.name == "RSAR") {
      reduced_ = {mark.subject, mark.dtype};
    } else if (mark.name == "W") {
      events_.push_back({std::string(kCompute), "W", mark.subject, std::exchange(copied_out_bytes_, 0)});
    } else if (mark.name == "RE" || mark.name == "REPF" || mark.name == "DROP") {
      events_.push_back({"", mark.name, mark.subject});
    } else if (mark.name == "B" || mark.name == "O") {
      events_.push_back({"", mark.name, ""});
      events_.back().has_group = false;
    }
  }

  // The mark follows the items of its gather.
  void complete_gather(const TraceEntry& mark) {
    for (auto event = events_.rbegin(); event != events_.rend(); ++event) {
      if (event->group != mark.subject || (event->token != "AG" && event->token != "IN")) break;
      event->dtype = mark.dtype;
      event->prefetched = mark.prefetched;
    }
  }

  void add_kernel(const TraceEntry& item) {
    if (item.name == "gather_copy_out") {
      copied_out_bytes_ = item.cost.written_bytes;
      return;
    }
    if (item.name == "reduce_copy_in") {
      events_.push_back({item.stream, "RIN", reduced_.group, item.cost.written_bytes, reduced_.dtype});
      return;
    }
    if (events_.empty() || events_.back().token != "run") {
      events_.push_back({item.stream, "run", ""});
      events_.back().has_group = false;
    }
    events_.back().bytes += item.cost.read_bytes + item.cost.written_bytes;
    events_.back().kernels += 1;
  }

  void add_item(const TraceEntry& item) {
    const device::Cost& cost = item.cost;
    if (item.name == "gather_copy_in") {
      if (cost.written_bytes > 0) events_.push_back({item.stream, "IN", item.subject, cost.written_bytes});
    } else if (item.name == "all_gather") {
      if (cost.link_bytes > 0) events_.push_back({item.stream, "AG", item.subject, cost.link_bytes});
    } else if (item.name == "reduce_scatter") {
      events_.push_back({item.stream, "RS", item.subject, cost.link_bytes, reduced_.dtype});
    } else if (item.name == "all_reduce") {
      events_.push_back({item.stream, "AR", item.subject, cost.link_bytes, reduced_.dtype});
    } else {
      events_.push_back({item.stream, item.name, item.subject, std::max(cost.written_bytes, cost.link_bytes)});
    }
  }

  struct Reduced {
    std::string group;
    std::optional<DType> dtype;
  };

  std::vector<ScheduleEvent> events_;
  std::int64_t copied_out_bytes_ = 0;  // by a copy-out whose W is to come
  Reduced reduced_;                    // of the last reduction marked
};

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
      }
      break;
    }
  }
  return wasted;
}

std::string shown_group(const ScheduleEvent& event) {
  if (!event.has_group) return "";
  return event.group.empty() ? "(root)" : event.group;
}

std::string shown_bytes(const ScheduleEvent& event) { return event.stream.empty() ? "" : fmt::to_string(event.bytes); }

std::string remark(const ScheduleEvent& event) {
  if (event.kernels > 0) return fmt::format("{} kernel{}", event.kernels, event.kernels == 1 ? "" : "s");
  std::string text = event.dtype ? std::string(name(*event.dtype)) : "";
  if (event.prefetched && event.token == "AG") text += ", prefetched";
  return text;
}

// A line without blanks at its end.
void append_line(std::string& text, std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  text += line + "\n";
}

void append_events(std::string& text, const std::vector<ScheduleEvent>& events) {
  std::size_t width = std::string_view("group").size();
  for (const ScheduleEvent& event : events) width = std::max(width, shown_group(event).size());
  append_line(text,
              fmt::format("{:>5}  {:<14}  {:<5}  {:<{}}  {:>12}", "#", "stream", "event", "group", width, "bytes"));
  for (std::size_t i = 0; i < events.size(); ++i) {
    append_line(text, fmt::format("{:>5}  {:<14}  {:<5}  {:<{}}  {:>12}  {}", i + 1, events[i].stream, events[i].token,
                                  shown_group(events[i]), width, shown_bytes(events[i]), remark(events[i])));
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

ScheduleView view_schedule(const device::Trace& trace, const device::MemStats& memory) {
  EventList list;
  for (const TraceEntry& entry : trace.entries()) list.add(entry);
  ScheduleView view;
  view.events = list.take();
  view.wasted = wasted_prefetches(view.events);
  const auto peak = [&](device::MemCategory category) {
    return memory.peak_by_category[static_cast<std::size_t>(category)];
  };
  view.peak_unsharded_bytes = peak(device::MemCategory::kUnsharded);
  view.peak_gather_buffer_bytes = peak(device::MemCategory::kGatherBuffer);
  return view;
}

std::string to_text(const WastedPrefetch& wasted) {
  const std::string group = wasted.group.empty() ? "(root)" : wasted.group;
  switch (wasted.why) {
    case WastedPrefetch::Why::kNothingToHideBehind:
      return fmt::format(
          "prefetch of {} (event {}) had nothing to hide behind: no kernel ran before it was waited for (event {})",
          group, wasted.issued, wasted.ended);
    case WastedPrefetch::Why::kNeverUsed:
      return fmt::format("prefetch of {} (event {}) was never used and dropped (event {})", group, wasted.issued,
                         wasted.ended);
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
  if (view.wasted.empty()) text += "no prefetch was in vain\n";
  return text;
}

}  // namespace loom::observe
