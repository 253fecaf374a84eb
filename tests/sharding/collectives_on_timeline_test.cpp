// Promise: every collective of a step stands in the recording with its kind, the bytes of its whole tensor and its
//          ranks: what a time model needs to say how long it takes.
// World:   4 ranks as threads, 2 x 2; a root and a block of width 4 (fp32: 64 bytes each).
#include <array>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "engine/device/recorder.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using ::testing::UnorderedElementsAre;

std::string describe(const device::Recording& recording, const device::Entry& entry) {
  constexpr std::array kKinds = {"all_gather", "reduce_scatter", "all_reduce"};
  return fmt::format("{} '{}' {} bytes over {},{}", kKinds[static_cast<std::size_t>(entry.collective)],
                     recording.text(entry.subject), entry.bytes, recording.group(entry.group).front(),
                     recording.group(entry.group).back());
}

TEST(CollectivesInTheRecording, SayWhatTheyMoveAndBetweenWhom) {
  test::run_world(4, [](RankContext& context, comm::World& world) {
    const auto chain = test::sharded_chain(test::kEvenWidth, 1, test::sharded_over(world, 2));
    const device::Recorder recorder(device::Device::current());
    test::forward_backward(*chain, test::toy_input(0, 3, test::kEvenWidth));
    if (context.rank() != 3) return;
    std::vector<std::string> collectives;
    const device::Recording recording = recorder.recording();
    for (const device::Entry& entry : recording.entries) {
      if (entry.kind != device::EntryKind::kCollective) continue;
      EXPECT_EQ(entry.cost.unit, device::Unit::kLink);
      collectives.push_back(describe(recording, entry));
    }
    EXPECT_THAT(collectives,
                UnorderedElementsAre("all_gather '' 64 bytes over 2,3", "all_gather 'layers.0' 64 bytes over 2,3",
                                     "all_gather 'layers.0' 64 bytes over 2,3", "reduce_scatter '' 64 bytes over 2,3",
                                     "reduce_scatter 'layers.0' 64 bytes over 2,3", "all_reduce '' 32 bytes over 1,3",
                                     "all_reduce 'layers.0' 32 bytes over 1,3"));
  });
}

}  // namespace
}  // namespace loom::sharding
