// Promise: reshard_after_forward k keeps 1 / k of each parameter on each of k consecutive ranks between forward and
//          backward, gathers from those in backward, and changes no bit. k = 1 is false, k = N is true, other k that do
//          not divide N are refused.
// World:   4 ranks as threads; root and 3 blocks of width 5 (uneven shards: 2, 2, 1, 0 rows).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/device/recorder.h"
#include "sharding/memory.h"
#include "tests/support/issued.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

constexpr int kBlocks = 3;

struct Step {
  double loss = 0;
  std::vector<std::pair<std::string, std::vector<double>>> gradients;
  std::string events;              // AG, REPF and RE of layers.0, in order
  std::int64_t between_bytes = 0;  // unsharded bytes between forward and backward
};

Step step_with(ReshardAfterForward after_forward, GatherLayout layout) {
  return test::of_each_rank(4,
                            [&](RankContext& context, comm::World& world) {
                              FullyShardOptions options = test::sharded_over_all(world, layout);
                              options.reshard_after_forward = after_forward;
                              const auto chain = test::sharded_chain(test::kOddWidth, kBlocks, options);
                              device::Device& device = device::Device::current();
                              const device::Recorder recorder(device);
                              Step step;
                              const Tensor loss =
                                  ops::mean((*chain)(test::toy_input(context.rank(), 3, test::kOddWidth)));
                              step.between_bytes = device.memory().stats().by_category[device::MemCategory::kParameter];
                              autograd::backward(loss);
                              step.loss = loss.item();
                              step.gradients = test::gradients(*chain);
                              for (const test::Issued& entry : test::issued(recorder.recording())) {
                                if (!entry.is_mark() || entry.subject != "layers.0") continue;
                                if (entry.name == "AG" || entry.name == "REPF" || entry.name == "RE") {
                                  step.events += fmt::format(
                                      "{}{} ", entry.name, entry.name == "AG" ? fmt::format("[{}]", entry.bytes) : "");
                                }
                              }
                              return step;
                            })
      .front();
}

class EachLayout : public ::testing::TestWithParam<GatherLayout> {};

TEST_P(EachLayout, TwoOfFourGivesTheBitsOfTrue) {
  const Step split = step_with(2, GetParam());
  const Step freed = step_with(true, GetParam());
  EXPECT_EQ(split.loss, freed.loss);
  EXPECT_EQ(split.gradients, freed.gradients);
}

// c = ceil(5 / 4) = 2 rows of 5 fp32: 40 bytes a rank from shards; 8 padded rows over 2 ranks: 80 bytes a rank in
// backward.
TEST_P(EachLayout, BackwardGathersFromTwoRanks) {
  EXPECT_EQ(step_with(2, GetParam()).events, "AG[40] REPF AG[80] RE ");
}

// Root and 3 blocks keep 80 bytes each, counted as 512.
TEST_P(EachLayout, HalfOfEachParameterStays) { EXPECT_EQ(step_with(2, GetParam()).between_bytes, 4 * 512); }

TEST_P(EachLayout, OneIsFalseAndAllIsTrue) {
  EXPECT_EQ(step_with(1, GetParam()).events, step_with(false, GetParam()).events);
  EXPECT_EQ(step_with(4, GetParam()).events, step_with(true, GetParam()).events);
  EXPECT_EQ(step_with(1, GetParam()).gradients, step_with(true, GetParam()).gradients);
}

INSTANTIATE_TEST_SUITE_P(Layouts, EachLayout, ::testing::Values(GatherLayout::kBuffered, GatherLayout::kFast));

TEST(PostForwardShards, ThreeOfFourIsRefused) {
  test::run_world(4, [](RankContext&, comm::World& world) {
    FullyShardOptions options = test::sharded_over_all(world);
    options.reshard_after_forward = 3;
    test::ToyBlock block(test::kOddWidth);
    try {
      fully_shard(block, options);
      ADD_FAILURE() << "not refused";
    } catch (const ConfigError& error) {
      EXPECT_STREQ(error.what(),
                   "reshard_after_forward is 3, but 4 ranks share the parameters; use true, false or a factor of 4");
    }
  });
}

}  // namespace
}  // namespace loom::sharding
