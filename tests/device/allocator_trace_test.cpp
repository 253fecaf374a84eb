// Promise: a recorder with `allocator` has every event of the caching allocator in order, whose sum is what the
//          allocator counts, and its segments at the end without gaps; blocks know what they were allocated for, also
//          those from before the recording.
// World:   one rank; a device of 1 GiB.
#include <gmock/gmock.h>

#include "engine/device/recorder.h"
#include "tests/device/sizes_and_streams.h"
#include "tests/support/one_rank.h"

namespace loom::device {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

DeviceOptions options(const AllocatorSettings& allocator = {}) {
  return {.profile = {.memory_bytes = 1024 * kMiB}, .dry_run = true, .allocator = allocator};
}

std::vector<AllocatorAction> actions(const Recording& recording) {
  std::vector<AllocatorAction> found;
  for (const AllocatorEvent& event : recording.allocator.events) found.push_back(event.change.action);
  return found;
}

// As the events say, from `before` on: now, and at the most.
std::pair<std::int64_t, std::int64_t> sums(const Recording& recording, std::int64_t before, AllocatorAction add,
                                           AllocatorAction remove) {
  std::int64_t now = before, most = before;
  for (const auto& [change, entries, origin] : recording.allocator.events) {
    if (change.action == add) now += change.bytes;
    if (change.action == remove) now -= change.bytes;
    most = std::max(most, now);
  }
  return {now, most};
}

void expect_whole(const Recording& recording, const AllocatorStats& stats) {
  std::int64_t reserved = 0, allocated = 0;
  for (const AllocatorSegment& segment : recording.allocator.segments) {
    std::int64_t at = segment.address;
    for (const AllocatorBlock& block : segment.blocks) {
      EXPECT_EQ(block.address, at);
      at += block.bytes;
      allocated += block.allocated ? block.bytes : 0;
    }
    EXPECT_EQ(at, segment.address + segment.bytes);
    reserved += segment.bytes;
  }
  EXPECT_EQ(reserved, stats.reserved_bytes);
  EXPECT_EQ(allocated, stats.allocated_bytes);
}

TEST(AllocatorTrace, HasSegmentsAllocationsAndFreesInOrder) {
  test::OneRank rank(options());
  DeviceMemory& memory = rank.device().memory();
  const Recorder recorder(rank.device(), {.allocator = true});
  auto large = memory.allocate(30 * kMiB, MemCategory::kActivation, "large");
  large.reset();
  const auto again = memory.allocate(29 * kMiB, MemCategory::kActivation, "again");  // 1 MiB is not split off
  const Recording recording = recorder.recording();
  using enum AllocatorAction;
  EXPECT_THAT(actions(recording), ElementsAre(kSegmentAlloc, kAlloc, kFree, kAlloc));
  EXPECT_EQ(recording.allocator.events[3].change.bytes, 30 * kMiB);
  EXPECT_EQ(recording.allocator.events[3].change.requested_bytes, 29 * kMiB);
  EXPECT_EQ(recording.allocator.events[2].change.address, recording.allocator.events[1].change.address);
  expect_whole(recording, memory.stats().allocator);
}

TEST(AllocatorTrace, BlocksKnowWhatTheyAreForAlsoFromBeforeTheRecording) {
  test::OneRank rank(options());
  Device& device = rank.device();
  const Recorder origins(device, {.entries = false, .allocator = true});
  const auto shard = device.memory().allocate(2 * kMiB, MemCategory::kOptimizerState, "w (sharded)");
  const Recorder step(device, {.allocator = true, .call_site = [] { return std::string("Decoder > layer (Layer)"); }});
  const PoolScope pool(device.memory(), kGatherStream);
  const auto gather = device.memory().allocate(4 * kMiB, MemCategory::kParameter, "gather of 'layer'");
  const Recording recording = step.recording();
  ASSERT_THAT(recording.allocator.segments, SizeIs(2));
  const AllocatorBlock& before = recording.allocator.segments[0].blocks[0];
  EXPECT_EQ(recording.text(before.origin.what), "w (sharded)");
  EXPECT_EQ(before.origin.category, MemCategory::kOptimizerState);
  EXPECT_EQ(before.origin.event, -1);
  const AllocatorBlock& inside = recording.allocator.segments[1].blocks[0];
  EXPECT_EQ(recording.allocator.segments[1].stream, kGatherStream);
  EXPECT_EQ(recording.text(inside.origin.what), "gather of 'layer'");
  EXPECT_EQ(recording.text(inside.origin.site), "Decoder > layer (Layer)");
  EXPECT_EQ(inside.origin.event, 1);  // behind the segment's
}

TEST(AllocatorTrace, AFullDeviceGivesSegmentsBackBeforeTheNewOne) {
  test::OneRank rank(options());
  DeviceMemory& memory = rank.device().memory();
  const Recorder recorder(rank.device(), {.allocator = true});
  memory.allocate(600 * kMiB, MemCategory::kActivation, "a").reset();
  const auto b = memory.allocate(700 * kMiB, MemCategory::kActivation, "b");
  using enum AllocatorAction;
  EXPECT_THAT(actions(recorder.recording()),
              ElementsAre(kSegmentAlloc, kAlloc, kFree, kSegmentFree, kSegmentAlloc, kAlloc));
}

TEST(AllocatorTrace, PartsOfExpandableSegmentsAreMappedAndUnmapped) {
  test::OneRank rank(options({.expandable_segments = true}));
  DeviceMemory& memory = rank.device().memory();
  const Recorder recorder(rank.device(), {.allocator = true});
  auto first = memory.allocate(50 * kMiB, MemCategory::kActivation, "first");
  const auto second = memory.allocate(30 * kMiB, MemCategory::kActivation, "second");
  first.reset();
  const auto third = memory.allocate(980 * kMiB, MemCategory::kActivation, "third");  // with the first's pages alone
  const Recording recording = recorder.recording();
  using enum AllocatorAction;
  EXPECT_THAT(actions(recording),
              ElementsAre(kSegmentMap, kAlloc, kSegmentMap, kAlloc, kFree, kSegmentUnmap, kSegmentMap, kAlloc));
  const AllocatorStats stats = memory.stats().allocator;
  EXPECT_EQ(sums(recording, 0, kSegmentMap, kSegmentUnmap).first, stats.reserved_bytes);
  expect_whole(recording, stats);
}

TEST(AllocatorTrace, SumsReachThePeaksOfTheAllocator) {
  test::OneRank rank(options());
  DeviceMemory& memory = rank.device().memory();
  const auto before = memory.allocate(3 * kMiB + 1, MemCategory::kOptimizerState, "before");
  memory.reset_peaks();
  const std::int64_t began = memory.stats().allocator.allocated_bytes;
  const Recorder recorder(rank.device(), {.allocator = true});
  std::vector<std::shared_ptr<Block>> blocks;
  for (std::int64_t i = 1; i < 40; ++i) {
    blocks.push_back(memory.allocate(i * i * 7919, MemCategory::kActivation, "x"));
    if (i % 3 == 0) blocks.erase(blocks.begin());
  }
  const Recording recording = recorder.recording();
  const AllocatorStats stats = memory.stats().allocator;
  EXPECT_EQ(sums(recording, began, AllocatorAction::kAlloc, AllocatorAction::kFree),
            std::pair(stats.allocated_bytes, stats.peak_allocated_bytes));
  expect_whole(recording, stats);
}

TEST(AllocatorTrace, IsEmptyUnlessItIsAskedFor) {
  test::OneRank rank(options());
  const Recorder recorder(rank.device(), {.memory = true});
  const auto block = rank.device().memory().allocate(kMiB, MemCategory::kActivation, "x");
  EXPECT_THAT(recorder.recording().allocator.events, IsEmpty());
  EXPECT_THAT(recorder.recording().allocator.segments, IsEmpty());
}

}  // namespace
}  // namespace loom::device
