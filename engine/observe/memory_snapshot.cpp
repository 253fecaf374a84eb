#include "engine/observe/memory_snapshot.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <unordered_map>

#include "engine/device/allocator_settings.h"
#include "engine/formats/torch/memory_snapshot.h"
#include "engine/observe/memory_points.h"

namespace loom::observe {
namespace {

using device::AllocatorAction;
using device::AllocatorEvent;
using device::AllocatorOrigin;
using device::EntryKind;
using io::SnapshotAction;

constexpr std::int64_t kFirstAddress = 0x7f0000000000;  // an address of 0 would read as none
constexpr std::string_view kBefore = "before the step";

// Of a tensor that nobody named.
constexpr std::string_view kUnnamed = "tensor";

struct Place {
  std::string module;
  std::string name;
};

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// "model.layers.3.mlp" as "model.layers.3" and "mlp", "model.layers.3" as "model" and "layers.3".
Place split_path(std::string_view path, std::string_view root) {
  std::size_t dot = path.rfind('.');
  if (dot != std::string_view::npos && dot > 0 && is_number(path.substr(dot + 1))) dot = path.rfind('.', dot - 1);
  if (dot == std::string_view::npos) return {std::string(root), std::string(path)};
  return {std::string(path.substr(0, dot)), std::string(path.substr(dot + 1))};
}

// "Decoder > model.layers.0 (Layer)" as its parts.
std::vector<std::string_view> calls_of(std::string_view site) {
  constexpr std::string_view kInside = " > ";
  std::vector<std::string_view> calls;
  while (!site.empty()) {
    const std::size_t end = std::min(site.find(kInside), site.size());
    calls.push_back(site.substr(0, end));
    site.remove_prefix(std::min(end + kInside.size(), site.size()));
  }
  return calls;
}

// What memory is for, with the group or the parameter's module: "gather of 'layers.3'" is of layers.3, and
// "layers.3.norm.weight (sharded)" of layers.3.norm.
Place place_of(const std::string& what) {
  const std::size_t open = what.find('\''), close = what.rfind('\'');
  if (open != std::string::npos && close > open) return {what.substr(open + 1, close - open - 1), what};
  const std::size_t space = what.find(" (");
  if (space != std::string::npos && what.rfind('.', space) != std::string::npos) {
    Place place = split_path(std::string_view(what).substr(0, space), "");
    place.name += what.substr(space);
    return place;
  }
  return {"", what};
}

class Maker {
 public:
  Maker(const device::Recording& recording, const virtual_time::RankTimes& times)
      : recording_(recording), done_(compute_done(recording, times)), end_ns_(times.end_ns) {
    index_entries();
  }

  io::MemorySnapshot make(const std::string& conf) {
    std::vector<io::SnapshotEvent>& trace = made_.device_traces.emplace_back();
    for (const AllocatorEvent& event : recording_.allocator.events) add_event(trace, event);
    trace.push_back({.action = SnapshotAction::kSnapshot, .time_us = end_ns_ / 1000});
    for (const device::AllocatorSegment& segment : recording_.allocator.segments) add_segment(segment);
    add_phases();
    made_.settings = settings_of(conf);
    return std::move(made_);
  }

 private:
  static io::SnapshotSettings settings_of(const std::string& conf) {
    const device::AllocatorSettings read = device::read_allocator_settings(conf, "--alloc-conf");
    io::SnapshotSettings settings{.conf = conf,
                                  .garbage_collection_threshold = read.garbage_collection_threshold,
                                  .expandable_segments = read.expandable_segments,
                                  .power2_divisions = {read.power2_divisions.begin(), read.power2_divisions.end()}};
    if (read.max_split_bytes > 0) settings.max_split_size = read.max_split_bytes;
    return settings;
  }

  // The phase that each entry is in, and the kernel that comes next in it.
  void index_entries() {
    const auto count = recording_.entries.size();
    phase_.assign(count + 1, 0);
    kernel_.assign(count + 1, 0);
    for (std::size_t i = 0; i < count; ++i) {
      const device::Entry& entry = recording_.entries[i];
      phase_[i + 1] = entry.kind == EntryKind::kPhase ? entry.name : phase_[i];
    }
    for (std::size_t i = count; i-- > 0;) {
      const device::Entry& entry = recording_.entries[i];
      kernel_[i] = entry.kind == EntryKind::kKernel ? entry.name : entry.kind == EntryKind::kPhase ? 0 : kernel_[i + 1];
    }
  }

  std::int64_t time_us(std::int64_t entries) const { return done_[static_cast<std::size_t>(entries)] / 1000; }

  // --- events and segments

  void add_event(std::vector<io::SnapshotEvent>& trace, const AllocatorEvent& event) {
    io::SnapshotEvent added{.address = kFirstAddress + event.change.address,
                            .size = event.change.bytes,
                            .requested_size = event.change.requested_bytes,
                            .stream = static_cast<std::int64_t>(event.change.stream.place()),
                            .time_us = time_us(event.entries)};
    switch (event.change.action) {
      case AllocatorAction::kSegmentAlloc:
        added.action = SnapshotAction::kSegmentAlloc;
        break;
      case AllocatorAction::kSegmentFree:
        added.action = SnapshotAction::kSegmentFree;
        break;
      case AllocatorAction::kSegmentMap:
        added.action = SnapshotAction::kSegmentMap;
        break;
      case AllocatorAction::kSegmentUnmap:
        added.action = SnapshotAction::kSegmentUnmap;
        break;
      case AllocatorAction::kAlloc:
      case AllocatorAction::kFree:
        added.stack = stack_of(event.origin);
        added.user_metadata = text(event.origin.category.name());
        if (event.change.action == AllocatorAction::kAlloc) break;
        added.action = SnapshotAction::kFreeRequested;
        trace.push_back(added);
        added.action = SnapshotAction::kFreeCompleted;
        break;
    }
    trace.push_back(added);
  }

  void add_segment(const device::AllocatorSegment& segment) {
    io::SnapshotSegment added{.address = kFirstAddress + segment.address,
                              .total_size = segment.bytes,
                              .stream = static_cast<std::int64_t>(segment.stream.place()),
                              .small = segment.small,
                              .is_expandable = segment.expandable};
    for (const device::AllocatorBlock& block : segment.blocks) {
      added.blocks.push_back({kFirstAddress + block.address, block.bytes, block.requested_bytes,
                              block.allocated ? io::SnapshotState::kActive : io::SnapshotState::kInactive,
                              block.allocated ? stack_of(block.origin) : 0});
    }
    made_.segments.push_back(std::move(added));
  }

  void add_phases() {
    std::string open;
    for (std::size_t i = 0; i < recording_.entries.size(); ++i) {
      const device::Entry& entry = recording_.entries[i];
      if (entry.kind != EntryKind::kPhase) continue;
      const std::int64_t at = time_us(static_cast<std::int64_t>(i));
      if (!open.empty()) made_.annotations.push_back({true, open, 0, at});
      open = recording_.text(entry.name);
      made_.annotations.push_back({false, open, 0, at});
    }
    if (!open.empty()) made_.annotations.push_back({true, open, 0, end_ns_ / 1000});
  }

  // --- frames

  std::int32_t stack_of(const AllocatorOrigin& origin) {
    const std::int64_t entries =
        origin.event < 0 ? -1 : recording_.allocator.events[static_cast<std::size_t>(origin.event)].entries;
    const std::int32_t phase = entries < 0 ? -1 : phase_[static_cast<std::size_t>(entries)];
    const std::int32_t kernel = entries < 0 ? 0 : kernel_[static_cast<std::size_t>(entries)];
    const Known known{origin.category, origin.what, origin.site, phase, kernel};
    const auto found = stacks_.find(known);
    if (found != stacks_.end()) return found->second;
    const auto number = static_cast<std::int32_t>(made_.stacks.size());
    std::vector<std::int32_t> stack = frames_of(known);
    made_.stacks.push_back(std::move(stack));
    return stacks_[known] = number;
  }

  struct Known {
    device::MemCategory category = device::MemCategory::kTemporary;
    std::int32_t what = 0, site = 0, phase = 0, kernel = 0;
    auto operator<=>(const Known&) const = default;
  };

  std::vector<std::int32_t> frames_of(const Known& known) {
    const std::string phase(known.phase < 0 ? kBefore : std::string_view(recording_.text(known.phase)));
    const std::string& what = recording_.text(known.what);
    const std::vector<std::string_view> calls = calls_of(recording_.text(known.site));
    const bool unnamed = what == kUnnamed || what.empty();
    const Place place = !unnamed ? place_of(what) : Place{"", recording_.text(known.kernel)};
    std::vector<std::int32_t> stack;
    std::size_t outer = calls.size();
    if (!place.module.empty()) {
      stack.push_back(frame(place.module, place.name));
    } else if (calls.empty()) {
      stack.push_back(frame(phase, place.name));
    } else {
      const Place inner = of_call(calls, --outer);
      stack.push_back(frame(inner.module, fmt::format("{}: {}", inner.name, place.name)));
    }
    while (outer-- > 0) {
      const Place call = of_call(calls, outer);
      stack.push_back(frame(call.module, call.name));
    }
    stack.push_back(frame(known.category.name(), phase));
    return stack;
  }

  // The module's parent and its own name; the outermost module is inside itself.
  static Place of_call(const std::vector<std::string_view>& calls, std::size_t i) {
    const std::string_view call = calls[i];
    const std::size_t type = call.rfind(" (");
    if (type == std::string_view::npos) return {std::string(call), "forward"};
    return split_path(call.substr(0, type), calls.front());
  }

  std::int32_t frame(std::string_view filename, std::string_view name) {
    const std::pair key(text(filename), text(name));
    const auto [known, is_new] = frames_.try_emplace(key, static_cast<std::int32_t>(made_.frames.size()));
    if (is_new) made_.frames.push_back({key.first, 0, key.second});
    return known->second;
  }

  std::int32_t text(std::string_view value) {
    if (value.empty()) return 0;
    const auto [known, is_new] = texts_.try_emplace(std::string(value), static_cast<std::int32_t>(made_.texts.size()));
    if (is_new) made_.texts.emplace_back(value);
    return known->second;
  }

  const device::Recording& recording_;
  const std::vector<std::int64_t> done_;
  const std::int64_t end_ns_;
  std::vector<std::int32_t> phase_, kernel_;  // by entries issued before: numbers of texts
  io::MemorySnapshot made_;
  std::map<Known, std::int32_t> stacks_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> frames_;
  std::unordered_map<std::string, std::int32_t> texts_;
};

}  // namespace

io::MemorySnapshot memory_snapshot(const device::Recording& recording, const virtual_time::RankTimes& times,
                                   const std::string& conf) {
  return Maker(recording, times).make(conf);
}

}  // namespace loom::observe
