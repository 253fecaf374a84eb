// Promise: blocks of a real snapshot are lined up with those of the plan by size: rows of category and group say what
//          is found, missing or more; the rest is in no row, and every byte is counted once.
// World:   a planned step by hand: two layers of a shard, a gather and an activation each; all four sizes differ.
#include "engine/explain/snapshot_lineup.h"

#include <gmock/gmock.h>

#include "engine/device/recorder.h"
#include "engine/observe/memory_snapshot.h"
#include "sharding/marks.h"
#include "sharding/memory.h"
#include "tests/support/one_rank.h"

namespace loom::explain {
namespace {

using device::MemCategory;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kShard = 2 * kMiB, kGather = 16 * kMiB, kActivation = 5 * kMiB;

// Both gathers, both activations; `gathers` at a time.
plan::StepEstimate planned(int gathers) {
  test::OneRank rank({.profile = {.memory_bytes = 1024 * kMiB}, .dry_run = true});
  device::Device& device = rank.device();
  const device::Recorder origins(device, {.entries = false, .allocator = true});
  std::vector<std::shared_ptr<device::Block>> kept;
  for (const char* layer : {"layers.0", "layers.1"}) {
    kept.push_back(device.memory().allocate(kShard, sharding::kShard, std::string(layer) + ".weight (sharded)"));
  }
  std::string site;
  const device::Recorder recorder(device, {.allocator = true, .call_site = [&] { return site; }});
  device.log().add_phase("forward");
  std::vector<std::shared_ptr<device::Block>> gathered;
  for (const std::string layer : {"layers.0", "layers.1"}) {
    device.log().add_mark({.kind = sharding::kGatherMark, .subject = layer});
    gathered.push_back(device.memory().allocate(kGather, sharding::kGatherBuffer, "gather of '" + layer + "'"));
    site = "Decoder > " + layer + " (Layer) > " + layer + ".mlp (Mlp)";
    kept.push_back(device.memory().allocate(kActivation, MemCategory::kActivation, "tensor"));
    device.launch("linear", {.flops = 1}, [] {});
    if (std::ssize(gathered) == gathers) gathered.erase(gathered.begin());
  }
  plan::StepEstimate plan;
  plan.runs.push_back({.rank = 0, .recording = recorder.recording(), .times = {}});
  plan.runs[0].times.entries.resize(plan.runs[0].recording.entries.size());
  return plan;
}

io::MemorySnapshot snapshot_of(const plan::StepEstimate& plan) {
  return observe::memory_snapshot(plan.run().recording, plan.run().times, "");
}

Lineup lined_up(const io::MemorySnapshot& real, const plan::StepEstimate& plan) {
  return line_up(real, peak_of(real, "s"), plan);
}

auto row(const char* category, std::int64_t planned, std::int64_t found, std::int64_t more,
         const char* group = "layers.{*}") {
  return AllOf(Field(&LineupRow::category, category), Field(&LineupRow::group, group),
               Field(&LineupRow::planned_bytes, planned), Field(&LineupRow::found_bytes, found),
               Field(&LineupRow::more_bytes, more));
}

TEST(SnapshotLineup, TheSameStepIsFoundGroupByGroup) {
  const plan::StepEstimate plan = planned(1);
  const Lineup lineup = lined_up(snapshot_of(plan), plan);
  EXPECT_THAT(lineup.rows,
              ElementsAre(row("shard", 2 * kShard, 2 * kShard, 0, ""), row("gather_buffer", kGather, kGather, 0),
                          row("activation", 2 * kActivation, 2 * kActivation, 0)));
  EXPECT_EQ(lineup.distance(), 0);
}

TEST(SnapshotLineup, AGatherThatIsKeptIsMoreOfItsGroup) {
  const Lineup lineup = lined_up(snapshot_of(planned(2)), planned(1));
  EXPECT_THAT(lineup.rows[1], row("gather_buffer", kGather, kGather, kGather));
  EXPECT_EQ(lineup.distance(), kGather);
  const Lineup other = lined_up(snapshot_of(planned(1)), planned(2));
  EXPECT_THAT(other.rows[1], row("gather_buffer", 2 * kGather, kGather, 0));
  EXPECT_EQ(other.missing_bytes, kGather);
}

TEST(SnapshotLineup, BlocksOfNoPlannedSizeAreInNoRow) {
  const plan::StepEstimate plan = planned(1);
  io::MemorySnapshot real = snapshot_of(plan);
  real.segments.push_back({.address = std::int64_t{1} << 50, .total_size = 3 * kMiB});
  real.segments.back().blocks = {
      {.address = std::int64_t{1} << 50, .size = 3 * kMiB, .state = io::SnapshotState::kActive}};
  const Lineup lineup = lined_up(real, plan);
  ASSERT_EQ(lineup.unplanned.size(), 1u);
  EXPECT_EQ(lineup.unplanned[0].bytes, 3 * kMiB);
  EXPECT_EQ(lineup.unplanned[0].count, 1);
  EXPECT_EQ(lineup.distance(), 3 * kMiB);
}

TEST(SnapshotLineup, AnotherSizeIsMissingAndNotPlanned) {
  const plan::StepEstimate plan = planned(1);
  io::MemorySnapshot real = snapshot_of(plan);
  for (io::SnapshotEvent& event : real.device_traces[0]) {
    if (event.requested_size == kActivation) event.requested_size = kActivation + 512;
  }
  const Lineup lineup = lined_up(real, plan);
  EXPECT_THAT(lineup.rows[2], row("activation", 2 * kActivation, 0, 0));
  EXPECT_EQ(lineup.missing_bytes, 2 * kActivation);
  EXPECT_EQ(lineup.unplanned_bytes, 2 * (kActivation + 512));
  EXPECT_EQ(lineup.more_bytes, 0);
}

}  // namespace
}  // namespace loom::explain
