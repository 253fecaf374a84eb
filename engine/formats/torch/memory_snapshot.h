// MemorySnapshot: what torch.cuda.memory._snapshot() returns and tools such as torch.cuda._memory_viz open - the
// segments of a caching allocator, its events, its settings.
//
// Written   a pickle of protocol 4, in the opcodes that the viewer's own reader has; lists in batches of 1000, frames
//           once each.
// Read      pickles of protocols 0 to 5 without classes (pickle_reader.h); also the older form, a plain list of
//           segments whose blocks have a `history`. Unknown keys are ignored. Blocks follow each other and fill their
//           segment.
// Frames    a stack is a number: an index of `stacks`, which hold indices of `frames`, the innermost first; stack 0 is
//           empty. A text is an index of `texts`; text 0 is empty. What a file shares has one number.
// Units     bytes; time in microseconds.
// Memory    of reading: in proportion to the file.
// Errors    FileDamage with file, offset, the actual and the allowed content.
// Threads   any.
// Source    PyTorch 2.11, torch/csrc/cuda/Module.cpp, torch/cuda/_memory_viz.py, torch/utils/viz/MemoryViz.js.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace loom::io {

struct SnapshotFrame {
  std::int32_t filename = 0;  // a text
  std::int64_t line = 0;
  std::int32_t name = 0;  // a text
};

// kPendingFree: freed, and waits for another stream.
enum class SnapshotState : std::uint8_t { kActive, kPendingFree, kInactive };

struct SnapshotBlock {
  std::int64_t address = 0;
  std::int64_t size = 0;
  std::int64_t requested_size = 0;  // 0: free, or the file does not say
  SnapshotState state = SnapshotState::kInactive;
  std::int32_t stack = 0;
};

struct SnapshotSegment {
  std::int64_t device = 0;
  std::int64_t address = 0;
  std::int64_t total_size = 0;
  std::int64_t stream = 0;
  bool small = false;
  bool is_expandable = false;
  std::pair<std::int64_t, std::int64_t> pool_id{};  // of a private pool; (0, 0): none
  std::int32_t stack = 0;
  std::vector<SnapshotBlock> blocks{};

  std::int64_t bytes_of(SnapshotState state) const;
};

enum class SnapshotAction : std::uint8_t {
  kAlloc,
  kFreeRequested,
  kFreeCompleted,
  kSegmentAlloc,
  kSegmentFree,
  kSegmentMap,
  kSegmentUnmap,
  kOom,
  kSnapshot,
};
// "alloc", "free_requested", ...
std::string_view name(SnapshotAction action);

struct SnapshotEvent {
  SnapshotAction action = SnapshotAction::kAlloc;
  std::int64_t address = 0;  // of kOom: the device's free bytes
  std::int64_t size = 0;
  std::int64_t requested_size = 0;  // a key of our own, where size is what the allocator counts; 0: size is the request
  std::int64_t stream = 0;
  std::int64_t time_us = 0;
  std::int32_t stack = 0;
  std::int32_t user_metadata = 0;  // a text
};

// The begin or end of a part of the program.
struct SnapshotAnnotation {
  bool is_end = false;
  std::string name;
  std::int64_t device = 0;
  std::int64_t time_us = 0;
};

struct SnapshotSettings {
  std::string conf;                  // PYTORCH_CUDA_ALLOC_CONF
  std::int64_t max_split_size = -1;  // -1: pieces of any size are split
  double garbage_collection_threshold = 0;
  bool expandable_segments = false;
  std::vector<std::int64_t> power2_divisions{};  // of sizes from 2^i MiB on; 16 where it is written
};

struct MemorySnapshot {
  std::vector<SnapshotSegment> segments{};
  std::vector<std::vector<SnapshotEvent>> device_traces{};  // a list for each device, in order
  SnapshotSettings settings{};
  std::vector<SnapshotAnnotation> annotations{};  // written; not read, as their keys are no promise
  std::vector<std::string> texts{""};
  std::vector<SnapshotFrame> frames{};
  std::vector<std::vector<std::int32_t>> stacks{{}};
};

std::string write_memory_snapshot(const MemorySnapshot& snapshot);
// `file` appears in messages.
MemorySnapshot read_memory_snapshot(std::span<const std::byte> bytes, const std::string& file);
MemorySnapshot read_memory_snapshot(const std::filesystem::path& file);

}  // namespace loom::io
