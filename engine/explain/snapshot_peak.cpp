#include "engine/explain/snapshot_peak.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <unordered_map>

#include "engine/core/error.h"
#include "engine/core/rounding.h"
#include "engine/core/shown_text.h"

namespace loom::explain {
namespace {

using io::SnapshotAction;
using io::SnapshotEvent;
using io::SnapshotState;

constexpr std::int64_t kRounding = 512;

const std::vector<SnapshotEvent>& trace_of(const io::MemorySnapshot& snapshot, std::int64_t device) {
  static const std::vector<SnapshotEvent> kNone;
  const auto at = static_cast<std::size_t>(device);
  return at < snapshot.device_traces.size() ? snapshot.device_traces[at] : kNone;
}

std::int64_t busiest_device(const io::MemorySnapshot& snapshot, const std::string& file) {
  std::map<std::int64_t, std::int64_t> reserved;
  for (const io::SnapshotSegment& segment : snapshot.segments) reserved[segment.device] += segment.total_size;
  for (std::size_t i = 0; i < snapshot.device_traces.size(); ++i) {
    if (!snapshot.device_traces[i].empty()) reserved.try_emplace(static_cast<std::int64_t>(i), 0);
  }
  if (reserved.empty()) {
    config_error(
        "{}: the snapshot has no segment and no event; record it while the model trains, with "
        "torch.cuda.memory._record_memory_history()",
        escaped(file));
  }
  return std::ranges::max_element(reserved, {}, [](const auto& entry) { return entry.second; })->first;
}

std::int64_t bytes_of(const SnapshotEvent& event) {
  return counted_bytes(event.requested_size > 0 ? event.requested_size : event.size);
}

std::int64_t bytes_of(const io::SnapshotBlock& block) {
  return counted_bytes(block.requested_size > 0 ? block.requested_size : block.size);
}

using Blocks = std::unordered_map<std::int64_t, PeakBlock>;  // by address

// The blocks from before the trace.
Blocks blocks_before(const io::MemorySnapshot& snapshot, std::int64_t device) {
  Blocks before;
  std::unordered_map<std::int64_t, bool> open;  // addresses that the trace knows: allocated in it and not freed
  for (const SnapshotEvent& event : trace_of(snapshot, device)) {
    const bool frees = event.action == SnapshotAction::kFreeRequested || event.action == SnapshotAction::kFreeCompleted;
    if (event.action == SnapshotAction::kAlloc) open[event.address] = true;
    if (!frees) continue;
    const bool pending = event.action == SnapshotAction::kFreeCompleted;
    if (open.try_emplace(event.address, false).second) before[event.address] = {bytes_of(event), event.stack, pending};
    if (event.action == SnapshotAction::kFreeCompleted) open[event.address] = false;
  }
  for (const io::SnapshotSegment& segment : snapshot.segments) {
    if (segment.device != device) continue;
    for (const io::SnapshotBlock& block : segment.blocks) {
      if (block.state == SnapshotState::kInactive || open.contains(block.address)) continue;
      before[block.address] = {bytes_of(block), block.stack, block.state == SnapshotState::kPendingFree};
    }
  }
  return before;
}

// Plays a trace.
class Player {
 public:
  Player(const io::MemorySnapshot& snapshot, std::int64_t device)
      : trace_(trace_of(snapshot, device)), blocks_(blocks_before(snapshot, device)) {
    for (const auto& [address, block] : blocks_) {
      active_ += block.bytes;
      if (block.pending) pending_ += block.bytes;
    }
    for (const io::SnapshotSegment& segment : snapshot.segments) {
      if (segment.device == device) reserved_ += segment.total_size;
    }
    for (const SnapshotEvent& event : trace_) reserved_ -= change_of_reserved(event);
    peak_.device = device;
    peak_.events = std::ssize(trace_);
    note();
    note_pending();
  }

  // Twice: the second time up to the peak, for its blocks.
  SnapshotPeak play() {
    Player until = *this;
    for (std::size_t i = 0; i < trace_.size(); ++i) {
      step(trace_[i]);
      if (note()) peak_at_ = i + 1;
      // A free that is completed at once waits for nothing.
      if (trace_[i].action != SnapshotAction::kFreeRequested || i + 1 == trace_.size()) note_pending();
    }
    for (std::size_t i = 0; i < peak_at_; ++i) until.step(trace_[i]);
    for (const auto& [address, block] : std::map(until.blocks_.begin(), until.blocks_.end())) {
      peak_.blocks.push_back(block);
    }
    return peak_;
  }

 private:
  static std::int64_t change_of_reserved(const SnapshotEvent& event) {
    switch (event.action) {
      case SnapshotAction::kSegmentAlloc:
      case SnapshotAction::kSegmentMap:
        return event.size;
      case SnapshotAction::kSegmentFree:
      case SnapshotAction::kSegmentUnmap:
        return -event.size;
      default:
        return 0;
    }
  }

  void step(const SnapshotEvent& event) {
    reserved_ += change_of_reserved(event);
    if (event.action == SnapshotAction::kOom) {
      ++peak_.out_of_memory;
      peak_.refused_bytes = event.size;
    }
    if (event.action == SnapshotAction::kAlloc) {
      remove(event.address);  // whose free the trace does not have
      blocks_[event.address] = {bytes_of(event), event.stack, false};
      active_ += bytes_of(event);
    }
    if (event.action == SnapshotAction::kFreeCompleted) remove(event.address);
    if (event.action != SnapshotAction::kFreeRequested) return;
    const auto found = blocks_.find(event.address);
    if (found == blocks_.end() || found->second.pending) return;
    found->second.pending = true;
    pending_ += found->second.bytes;
  }

  void remove(std::int64_t address) {
    const auto found = blocks_.find(address);
    if (found == blocks_.end()) return;
    active_ -= found->second.bytes;
    if (found->second.pending) pending_ -= found->second.bytes;
    blocks_.erase(found);
  }

  void note_pending() { peak_.most_pending_bytes = std::max(peak_.most_pending_bytes, pending_); }

  // Whether this is the peak so far.
  bool note() {
    peak_.most_reserved_bytes = std::max(peak_.most_reserved_bytes, reserved_);
    if (active_ <= peak_.active_bytes) return false;
    peak_.active_bytes = active_;
    peak_.pending_bytes = pending_;
    peak_.reserved_bytes = reserved_;
    return true;
  }

  const std::vector<SnapshotEvent>& trace_;
  Blocks blocks_;
  std::int64_t active_ = 0, pending_ = 0, reserved_ = 0;
  std::size_t peak_at_ = 0;  // events before the peak
  SnapshotPeak peak_;
};

}  // namespace

std::int64_t counted_bytes(std::int64_t requested) { return round_up(requested, kRounding); }

SnapshotPeak peak_of(const io::MemorySnapshot& snapshot, const std::string& file) {
  return Player(snapshot, busiest_device(snapshot, file)).play();
}

std::vector<PeakBlock> all_sizes(const io::MemorySnapshot& snapshot, std::int64_t device) {
  std::map<std::pair<std::int64_t, std::int32_t>, PeakBlock> sizes;
  const auto add = [&](std::int64_t bytes, std::int32_t stack) { sizes[{bytes, stack}] = {bytes, stack, false}; };
  for (const auto& [address, block] : blocks_before(snapshot, device)) add(block.bytes, block.stack);
  for (const SnapshotEvent& event : trace_of(snapshot, device)) {
    if (event.action == SnapshotAction::kAlloc) add(bytes_of(event), event.stack);
  }
  std::vector<PeakBlock> all;
  for (const auto& [key, block] : sizes) all.push_back(block);
  return all;
}

std::string place_in_source(const io::MemorySnapshot& snapshot, std::int32_t stack) {
  const auto text = [&](std::int32_t number) -> const std::string& {
    return snapshot.texts[static_cast<std::size_t>(number)];
  };
  for (const std::int32_t number : snapshot.stacks[static_cast<std::size_t>(stack)]) {
    const io::SnapshotFrame& frame = snapshot.frames[static_cast<std::size_t>(number)];
    const std::string_view file = text(frame.filename);
    const bool of_torch = !file.ends_with(".py") || file.find("/torch/") != std::string_view::npos;
    if (of_torch) continue;
    const std::size_t slash = file.rfind('/');
    return fmt::format("{}:{} {}", shown_text(slash == std::string_view::npos ? file : file.substr(slash + 1)),
                       frame.line, shown_text(text(frame.name)));
  }
  return "";
}

}  // namespace loom::explain
