// AllocatorTrace: what a caching allocator did, event by event, and its segments at the end. A value.
//
// Sizes     `bytes` is what the allocator counts: a request rounded up, and what was not split off. `requested_bytes`
//           is what was asked for.
// Address   of the emulated device, from 0 on. A segment that was given back leaves its addresses unused; of an
//           expandable segment they are mapped again.
// Origin    of a block: what it was allocated for, also where that was before the trace.
// Threads   any.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/device/mem_category.h"
#include "engine/device/stream_id.h"

namespace loom::device {

enum class AllocatorAction : std::uint8_t {
  kAlloc,
  kFree,
  kSegmentAlloc,
  kSegmentFree,
  kSegmentMap,    // of an expandable segment
  kSegmentUnmap,  // of an expandable segment
};

// One change of an allocator.
struct AllocatorChange {
  AllocatorAction action = AllocatorAction::kAlloc;
  StreamId stream = StreamId::kCompute;  // of the pool
  std::int64_t address = 0;
  std::int64_t bytes = 0;
  std::int64_t requested_bytes = 0;  // of a block
};

struct AllocatorOrigin {
  MemCategory category = MemCategory::kTemporary;
  std::int32_t what = 0;    // "gather of 'layers.3'": a number for Recording::text()
  std::int32_t site = 0;    // the running modules: a number for text(); 0: none, or not recorded
  std::int64_t event = -1;  // its allocation: an index of AllocatorTrace::events; -1: before the recording
};

struct AllocatorEvent {
  AllocatorChange change;
  std::int64_t entries = 0;  // of the recording, issued before it
  AllocatorOrigin origin;    // of the block
};

struct AllocatorBlock {
  std::int64_t address = 0;
  std::int64_t bytes = 0;
  std::int64_t requested_bytes = 0;  // 0: free
  bool allocated = false;
  AllocatorOrigin origin{};
};

// Of an expandable segment each part without a gap.
struct AllocatorSegment {
  std::int64_t address = 0;
  std::int64_t bytes = 0;
  StreamId stream = StreamId::kCompute;
  bool small = false;  // for requests up to 1 MiB
  bool expandable = false;
  std::vector<AllocatorBlock> blocks{};  // by address, without gaps
};

struct AllocatorTrace {
  std::vector<AllocatorEvent> events{};
  std::vector<AllocatorSegment> segments{};  // when the recording was taken, by address
};

}  // namespace loom::device
