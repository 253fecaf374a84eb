// The peak of a memory snapshot: what was alive when most was, of a real run as of a plan.
//
// Device   of several the one with most reserved memory.
// Active   what is allocated, and what was freed and waits for another stream. The peak is that of active bytes over
//          the trace; without a trace it is what the segments hold at the end.
// Sizes    what was asked for, rounded up to 512 bytes: the file's events do not have more.
// Before   blocks from before the trace are those that are alive at its end, or freed in it, without an allocation in
//          it.
// Threads  any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/formats/torch/memory_snapshot.h"

namespace loom::explain {

struct PeakBlock {
  std::int64_t bytes = 0;
  std::int32_t stack = 0;  // of the snapshot
  bool pending = false;    // freed, and waits for another stream
};

struct SnapshotPeak {
  std::int64_t device = 0;
  std::int64_t events = 0;  // of its trace
  std::int64_t active_bytes = 0;
  std::int64_t pending_bytes = 0;        // then, of the active ones
  std::int64_t reserved_bytes = 0;       // then
  std::int64_t most_reserved_bytes = 0;  // over the trace
  std::int64_t most_pending_bytes = 0;
  std::int64_t out_of_memory = 0;   // times that an allocation failed
  std::int64_t refused_bytes = 0;   // the last one's request
  std::vector<PeakBlock> blocks{};  // active then

  // Of reserved memory, what held no block then.
  std::int64_t unused_bytes() const { return reserved_bytes - active_bytes; }
};

// ConfigError, naming `file`, where the snapshot has no segment and no event.
SnapshotPeak peak_of(const io::MemorySnapshot& snapshot, const std::string& file);

// Of one allocation's size, as it counts here.
std::int64_t counted_bytes(std::int64_t requested);
// Sizes of all allocations in the trace and of all blocks: sorted, each with the first stack that has it.
std::vector<PeakBlock> all_sizes(const io::MemorySnapshot& snapshot, std::int64_t device);

// The innermost frame that is a person's, as "train.py:12 forward"; "" without frames.
std::string place_in_source(const io::MemorySnapshot& snapshot, std::int32_t stack);

}  // namespace loom::explain
