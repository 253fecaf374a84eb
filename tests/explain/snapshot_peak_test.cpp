// Promise: the peak of a snapshot is found by playing its trace, with what was allocated before it, what waits for
//          another stream, and what was reserved then.
// World:   snapshots by hand: one segment, blocks of whole KiB.
#include "engine/explain/snapshot_peak.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::explain {
namespace {

using io::MemorySnapshot;
using io::SnapshotAction;
using io::SnapshotEvent;
using io::SnapshotState;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

constexpr std::int64_t kKiB = 1024;

SnapshotEvent event(SnapshotAction action, std::int64_t address, std::int64_t size) {
  return {.action = action, .address = address * kKiB, .size = size};
}

// A segment of 64 KiB from address 0 on, with active blocks of whole KiB {address, size}.
io::SnapshotSegment segment(const std::vector<std::pair<std::int64_t, std::int64_t>>& active) {
  io::SnapshotSegment made{.total_size = 64 * kKiB};
  for (const auto& [address, size] : active) {
    made.blocks.push_back({.address = address * kKiB, .size = size * kKiB, .state = SnapshotState::kActive});
  }
  return made;
}

std::vector<std::int64_t> sizes(const SnapshotPeak& peak) {
  std::vector<std::int64_t> sizes;
  for (const PeakBlock& block : peak.blocks) sizes.push_back(block.bytes / kKiB);
  return sizes;
}

// 8 KiB live from before to the end, 4 KiB from before are freed, 2 and 16 KiB come and go, 1 KiB stays.
MemorySnapshot small_run() {
  MemorySnapshot snapshot{.segments = {segment({{0, 8}, {30, 1}})}};
  snapshot.device_traces = {
      {event(SnapshotAction::kAlloc, 12, 2 * kKiB), event(SnapshotAction::kFreeRequested, 8, 4 * kKiB),
       event(SnapshotAction::kAlloc, 14, 16 * kKiB - 100), event(SnapshotAction::kFreeCompleted, 8, 4 * kKiB),
       event(SnapshotAction::kFreeRequested, 12, 2 * kKiB), event(SnapshotAction::kFreeCompleted, 12, 2 * kKiB),
       event(SnapshotAction::kAlloc, 30, kKiB), event(SnapshotAction::kFreeRequested, 14, 16 * kKiB - 100),
       event(SnapshotAction::kFreeCompleted, 14, 16 * kKiB - 100)}};
  return snapshot;
}

TEST(SnapshotPeak, CountsWhatWasAllocatedBeforeTheTraceAndWhatWaits) {
  const SnapshotPeak peak = peak_of(small_run(), "s");
  EXPECT_EQ(peak.active_bytes, (8 + 4 + 2 + 16) * kKiB);
  EXPECT_EQ(peak.pending_bytes, 4 * kKiB);
  EXPECT_EQ(peak.most_pending_bytes, 4 * kKiB);
  EXPECT_EQ(peak.reserved_bytes, 64 * kKiB);
  EXPECT_EQ(peak.unused_bytes(), 34 * kKiB);
  EXPECT_THAT(sizes(peak), UnorderedElementsAre(8, 4, 2, 16));
}

TEST(SnapshotPeak, ReservedMemoryIsThatOfThePeak) {
  MemorySnapshot snapshot = small_run();
  std::vector<SnapshotEvent>& trace = snapshot.device_traces[0];
  trace.insert(trace.begin() + 2, event(SnapshotAction::kSegmentAlloc, 14, 20 * kKiB));
  trace.push_back(event(SnapshotAction::kSegmentFree, 14, 20 * kKiB));
  const SnapshotPeak peak = peak_of(snapshot, "s");
  EXPECT_EQ(peak.reserved_bytes, 84 * kKiB);
  EXPECT_EQ(peak.most_reserved_bytes, 84 * kKiB);
}

TEST(SnapshotPeak, WithoutATraceIsWhatTheSegmentsHold) {
  MemorySnapshot snapshot{.segments = {segment({{0, 8}, {30, 1}})}};
  snapshot.segments[0].blocks[1].state = SnapshotState::kPendingFree;
  const SnapshotPeak peak = peak_of(snapshot, "s");
  EXPECT_EQ(peak.events, 0);
  EXPECT_EQ(peak.active_bytes, 9 * kKiB);
  EXPECT_EQ(peak.pending_bytes, kKiB);
}

TEST(SnapshotPeak, IsOfTheDeviceWithMostReservedMemory) {
  MemorySnapshot snapshot = small_run();
  io::SnapshotSegment other = segment({{0, 3}});
  other.device = 1;
  other.total_size = 256 * kKiB;
  snapshot.segments.push_back(other);
  const SnapshotPeak peak = peak_of(snapshot, "s");
  EXPECT_EQ(peak.device, 1);
  EXPECT_THAT(sizes(peak), ElementsAre(3));
}

TEST(SnapshotPeak, CountsFailedAllocations) {
  MemorySnapshot snapshot = small_run();
  snapshot.device_traces[0].push_back(event(SnapshotAction::kOom, 1, 999));
  EXPECT_EQ(peak_of(snapshot, "s").out_of_memory, 1);
  EXPECT_EQ(peak_of(snapshot, "s").refused_bytes, 999);
}

TEST(SnapshotPeak, AnEmptySnapshotIsRefused) {
  EXPECT_EQ(test::message_of<ConfigError>([] { peak_of({}, "empty.pickle"); }),
            "empty.pickle: the snapshot has no segment and no event; record it while the model trains, with "
            "torch.cuda.memory._record_memory_history()");
}

TEST(PlaceInSource, IsTheInnermostFrameThatIsNotOfTorch) {
  MemorySnapshot snapshot;
  snapshot.texts = {"", "/x/torch/nn/modules/linear.py", "forward", "/home/me/train.py", "step"};
  snapshot.frames = {{1, 125, 2}, {3, 12, 4}};
  snapshot.stacks = {{}, {0, 1}, {0}};
  EXPECT_EQ(place_in_source(snapshot, 1), "train.py:12 step");
  EXPECT_EQ(place_in_source(snapshot, 2), "");
}

}  // namespace
}  // namespace loom::explain
