// Recording: all that one rank's host issued while a Recorder ran, in host order. A value: it outlives device and run.
//
// Entries    work on a stream; a stream's wait for an entry; work of the host, or its wait for an entry; the begin of a
//            phase. Entries refer to one another by index. Waits for entries issued before the recording are left out:
//            a recording does not depend on other recordings.
// Marks      notes of higher floors on the step, without device work: a collective was issued, a group is usable, ...
// Memory     the device's accounts at the beginning and after every change, if requested.
// Allocator  every event of the caching allocator, and its segments at the end, if requested.
// Wall       when entries really ran, if requested.
// Virtual    nothing here takes time: durations come from a time model when the recording is resolved (virtual_time).
// Names      are for people and for the tables of device profiles; code decides by the enums.
// Threads    any.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/device/allocator_trace.h"
#include "engine/device/cost.h"
#include "engine/device/memory.h"
#include "engine/device/stream_id.h"

namespace loom::device {

enum class EntryKind : std::uint8_t {
  kKernel,      // work of the compute stream
  kCopy,        // work of another stream that is no collective
  kCollective,  // among several ranks
  kStreamWait,  // a stream waits for an entry
  kHostWork,    // the host works
  kHostWait,    // the host waits for an entry
  kPhase,       // a phase of the step begins
};
// A kernel, copy or collective.
inline bool is_stream_work(EntryKind kind) { return kind <= EntryKind::kCollective; }
// The entries of a stream: its work and its waits.
inline bool is_on_stream(EntryKind kind) { return kind <= EntryKind::kStreamWait; }
// The host's own work and waits.
inline bool is_on_host(EntryKind kind) { return kind == EntryKind::kHostWork || kind == EntryKind::kHostWait; }

// Instead of the index of an entry: an entry that is always done.
inline constexpr std::int64_t kDone = -1;

struct Entry {
  EntryKind kind = EntryKind::kKernel;
  StreamId stream = StreamId::kCompute;
  CollectiveKind collective = CollectiveKind::kAllGather;
  std::int32_t name = 0;       // of the kernel, collective or phase: a number for Recording::text()
  std::int32_t subject = 0;    // "layers.3": a number for text()
  std::int32_t group = -1;     // the ranks of a collective: a number for Recording::group(); -1: no collective
  std::int32_t axis = 0;       // the name of that group, "dp_shard": a number for text()
  std::int32_t site = 0;       // what it was issued for: a number for text()
  std::int64_t other = kDone;  // the entry that a wait waits for: an index of Recording::entries
  std::int64_t bytes = 0;      // of a collective's whole tensor
  Cost cost = {};
};

// The kind of a mark: the room that sets the mark names it (sharding/marks.h). Two with the same token are equal.
class MarkKind {
 public:
  constexpr MarkKind() = default;
  // `token` is a literal: "AG".
  constexpr explicit MarkKind(std::string_view token) : token_(token) {}
  constexpr std::string_view token() const { return token_; }
  friend constexpr bool operator==(MarkKind a, MarkKind b) { return a.token_ == b.token_; }

 private:
  std::string_view token_;
};

struct Mark {
  MarkKind kind{};
  std::int32_t subject = 0;   // "layers.3": a number for Recording::text()
  std::int64_t entries = 0;   // of the recording, issued before it
  std::int64_t bytes = 0;     // of a collective: this rank's input
  DType dtype = DType::kF32;  // on the wire
  std::int64_t count = 0;     // of parameters in it
  bool prefetched = false;    // issued on behalf of another group
};

// The state of the memory after a change.
struct MemorySample {
  std::int64_t entries = 0;  // of the recording, issued before it
  CategoryBytes by_category{};
  std::int64_t allocated_bytes = 0;  // by the caching allocator: the categories and what it does not split off
  std::int64_t reserved_bytes = 0;
  std::int64_t cache_flushes = 0;  // AllocatorStats::cache_flushes so far
  std::int64_t wall_ns = 0;        // as WallTime; 0 where wall times are not recorded
};

struct MemoryPeaks {
  std::int64_t total_bytes = 0;         // of all categories together
  CategoryBytes by_category{};          // each category's own
  CategoryBytes by_category_at_peak{};  // when the total was at its peak first
  std::int64_t allocated_bytes = 0;
  std::int64_t reserved_bytes = 0;
};
// The accounts' own peaks over the time of the samples (MemStats).
MemoryPeaks peaks_of(std::span<const MemorySample> samples);

// When an entry really was issued by the host, began and ended: ns of std::chrono::steady_clock.
struct WallTime {
  std::int64_t issued = 0;
  std::int64_t start = 0;
  std::int64_t end = 0;
};

struct Recording {
  std::vector<Entry> entries{};
  std::vector<Mark> marks{};
  std::vector<MemorySample> memory{};
  std::vector<WallTime> wall{};  // as entries; empty if not requested
  AllocatorTrace allocator{};    // empty if not requested
  std::vector<std::string> texts{""};
  std::vector<std::vector<int>> groups{};  // as Collective::ranks

  const std::string& text(std::int32_t number) const { return texts[static_cast<std::size_t>(number)]; }
  const std::vector<int>& group(std::int32_t number) const { return groups[static_cast<std::size_t>(number)]; }
  const Entry& entry(std::int64_t index) const { return entries[static_cast<std::size_t>(index)]; }

  // Entries and marks in the order of the host.
  template <class OnEntry, class OnMark>
  void visit(OnEntry&& on_entry, OnMark&& on_mark) const {
    auto mark = marks.begin();
    for (std::size_t i = 0; i < entries.size(); ++i) {
      for (; mark != marks.end() && mark->entries <= static_cast<std::int64_t>(i); ++mark) on_mark(*mark);
      on_entry(entries[i]);
    }
    for (; mark != marks.end(); ++mark) on_mark(*mark);
  }
};

}  // namespace loom::device
