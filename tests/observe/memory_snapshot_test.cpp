// Promise: the snapshot of a recorded step has its events with virtual times, addresses and streams, and frames that
//          name module, operator or purpose, category and phase; blocks from before the step say so.
// World:   one rank; a step by hand: a shard from before it, a gather, a kernel in a module, one without.
#include "engine/observe/memory_snapshot.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "engine/device/recorder.h"
#include "engine/formats/torch/memory_snapshot.h"
#include "sharding/memory.h"
#include "tests/support/one_rank.h"

namespace loom::observe {
namespace {

using device::MemCategory;
using device::StreamId;
using io::SnapshotAction;
using ::testing::ElementsAre;

constexpr std::int64_t kMiB = 1 << 20;
constexpr StreamId kGather{2, "gather"};

// An entry takes 2 us.
virtual_time::RankTimes times_of(const device::Recording& recording) {
  virtual_time::RankTimes times;
  for (std::size_t i = 0; i < recording.entries.size(); ++i) {
    const auto start = static_cast<std::int64_t>(i) * 2000;
    times.entries.push_back({start, start, start + 2000});
  }
  times.end_ns = 50'000;
  return times;
}

class MemorySnapshotOfAStep : public ::testing::Test {
 protected:
  io::MemorySnapshot step() {
    test::OneRank rank({.profile = {.memory_bytes = 1024 * kMiB}, .dry_run = true});
    device::Device& device = rank.device();
    device::DeviceMemory& memory = device.memory();
    const device::Recorder origins(device, {.entries = false, .allocator = true});
    const auto shard = memory.allocate(2 * kMiB, sharding::kShard, "layers.0.mlp.weight (sharded)");
    std::string site;
    const device::Recorder recorder(device, {.allocator = true, .call_site = [&] { return site; }});
    device.log().add_phase("forward");
    site = "Decoder > layers.0 (Layer) > layers.0.mlp (Mlp)";
    std::shared_ptr<device::Block> gather;
    {
      const device::PoolScope pool(memory, kGather);
      gather = memory.allocate(30 * kMiB, sharding::kGatherBuffer, "gather of 'layers.0'");
    }
    auto out = memory.allocate(5 * kMiB - 100, MemCategory::kActivation, "tensor");
    device.launch("linear", {.flops = 1}, [] {});
    gather.reset();
    site.clear();
    device.log().add_phase("optimizer");
    const auto scratch = memory.allocate(kMiB, MemCategory::kTemporary, "tensor");
    device.launch("adamw", {.flops = 1}, [] {});
    const device::Recording recording = recorder.recording();
    return memory_snapshot(recording, times_of(recording), "max_split_size_mb:64");
  }
};

std::string frames_of(const io::MemorySnapshot& snapshot, std::int32_t stack) {
  std::string text;
  for (const std::int32_t number : snapshot.stacks.at(static_cast<std::size_t>(stack))) {
    const io::SnapshotFrame& frame = snapshot.frames.at(static_cast<std::size_t>(number));
    text += (text.empty() ? "" : " | ") + snapshot.texts.at(static_cast<std::size_t>(frame.filename)) + ": " +
            snapshot.texts.at(static_cast<std::size_t>(frame.name));
  }
  return text;
}

TEST_F(MemorySnapshotOfAStep, HasTheEventsInOrderWithVirtualTimes) {
  const io::MemorySnapshot snapshot = step();
  std::vector<std::pair<std::string_view, std::int64_t>> events;  // action and time
  for (const io::SnapshotEvent& event : snapshot.device_traces.at(0)) {
    events.emplace_back(io::name(event.action), event.time_us);
  }
  using E = std::pair<std::string_view, std::int64_t>;
  EXPECT_THAT(events, ElementsAre(E("segment_alloc", 0), E("alloc", 0), E("alloc", 0), E("free_requested", 4),
                                  E("free_completed", 4), E("segment_alloc", 4), E("alloc", 4), E("snapshot", 50)));
}

TEST_F(MemorySnapshotOfAStep, FramesNameModuleOperatorCategoryAndPhase) {
  const io::MemorySnapshot snapshot = step();
  const std::vector<io::SnapshotEvent>& trace = snapshot.device_traces.at(0);
  EXPECT_EQ(frames_of(snapshot, trace[1].stack),
            "layers.0: gather of 'layers.0' | layers.0: mlp | Decoder: layers.0 | Decoder: forward | "
            "gather_buffer: forward");
  EXPECT_EQ(frames_of(snapshot, trace[2].stack),
            "layers.0: mlp: linear | Decoder: layers.0 | Decoder: forward | activation: forward");
  EXPECT_EQ(trace[4].stack, trace[1].stack);  // a free is that of its allocation
  EXPECT_EQ(frames_of(snapshot, trace[6].stack), "optimizer: adamw | temporary: optimizer");
  EXPECT_EQ(snapshot.texts.at(static_cast<std::size_t>(trace[1].user_metadata)), "gather_buffer");
}

TEST_F(MemorySnapshotOfAStep, BlocksHaveSizesStreamsAndOrigins) {
  const io::MemorySnapshot snapshot = step();
  ASSERT_EQ(snapshot.segments.size(), 3u);
  const io::SnapshotSegment& first = snapshot.segments[0];
  EXPECT_EQ(frames_of(snapshot, first.blocks[0].stack), "layers.0.mlp: weight (sharded) | shard: before the step");
  EXPECT_EQ(first.blocks[1].requested_size, 5 * kMiB - 100);
  EXPECT_EQ(first.blocks[1].size, 5 * kMiB);
  EXPECT_EQ(first.blocks[2].state, io::SnapshotState::kInactive);
  EXPECT_EQ(snapshot.segments[1].stream, 2);
  EXPECT_TRUE(snapshot.segments[2].small);
  EXPECT_EQ(first.address, snapshot.segments[1].address - first.total_size);
  EXPECT_EQ(snapshot.settings.max_split_size, 64 * kMiB);
}

TEST_F(MemorySnapshotOfAStep, PhasesAreAnnotations) {
  std::vector<std::string> found;
  for (const io::SnapshotAnnotation& a : step().annotations) {
    found.push_back(fmt::format("{} {} {}", a.is_end ? "end" : "begin", a.name, a.time_us));
  }
  EXPECT_THAT(found, ElementsAre("begin forward 0", "end forward 4", "begin optimizer 4", "end optimizer 50"));
}

}  // namespace
}  // namespace loom::observe
