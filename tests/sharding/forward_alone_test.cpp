// Promise: forwards without a backward leave nothing behind: no bookkeeping grows, and the next forward sees the
//          weights of then.
// World:   2 ranks as threads; a chain of 2 blocks.
#include <gtest/gtest.h>

#include "engine/nn/optim/adamw.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using test::run_world;

class ForwardAlone : public ::testing::TestWithParam<GatherLayout> {};

TEST_P(ForwardAlone, TenThousandTimesDoesNotGrowWhatBackwardWouldRead) {
  run_world(2, [](RankContext&, comm::World& world) {
    const auto chain = test::sharded_chain(2, 1, test::sharded_over_all(world, GetParam()));
    const Tensor input = test::toy_input(0, 1, 2);
    const autograd::NoGrad no_grad;
    (*chain)(input);
    const device::MemStats before = device::Device::current().memory().stats();
    for (int i = 0; i < 10000; ++i) (*chain)(input);
    EXPECT_EQ(FsdpState::of(*chain)->recorded_forwards(), 0u);
    const device::MemStats after = device::Device::current().memory().stats();
    EXPECT_EQ(after.total_bytes, before.total_bytes);
    EXPECT_EQ(after.peak_bytes, before.peak_bytes);
  });
}

TEST_P(ForwardAlone, WhatAForwardWithGradRecordsEndsWithItsBackward) {
  run_world(2, [](RankContext&, comm::World& world) {
    const auto chain = test::sharded_chain(2, 2, test::sharded_over_all(world, GetParam()));
    const Tensor loss = ops::mean((*chain)(test::toy_input(0, 1, 2)));
    EXPECT_EQ(FsdpState::of(*chain)->recorded_forwards(), 3u);  // 2 blocks and the root
    autograd::backward(loss);
    EXPECT_EQ(FsdpState::of(*chain)->recorded_forwards(), 0u);
  });
}

// Output of the chain after its weights were multiplied by -1, with and without a forward before the change.
std::vector<double> after_update(comm::World& world, std::optional<bool> reshard_after_forward, bool forward_before) {
  FullyShardOptions options = test::sharded_over_all(world, ForwardAlone::GetParam());
  options.reshard_after_forward = reshard_after_forward;
  const auto chain = test::sharded_chain(4, 2, options);
  const autograd::NoGrad no_grad;
  if (forward_before) (*chain)(test::toy_input(0, 2, 4));
  // The peers have read their rows before they change: in training the reduction of the gradients sees to that.
  const auto everyone = world.everyone();
  everyone->barrier(comm::kHostLane, "before the update");
  for (const Tensor& parameter : chain->parameters()) parameter.copy_from(ops::scale(parameter, -1));
  return (*chain)(test::toy_input(0, 2, 4)).tensor().to_vector<double>();
}

TEST_P(ForwardAlone, WithoutReshardingTheNextForwardUsesTheNewWeights) {
  for (const std::optional<bool> reshard : {std::optional<bool>(false), std::optional<bool>()}) {
    run_world(2, [&](RankContext&, comm::World& world) {
      EXPECT_EQ(after_update(world, reshard, true), after_update(world, reshard, false));
    });
  }
}

TEST_P(ForwardAlone, ANoGradForwardBetweenStepsDoesNotChangeTraining) {
  run_world(2, [](RankContext&, comm::World& world) {
    std::vector<std::vector<double>> losses(2);
    for (const bool evaluates : {false, true}) {
      FullyShardOptions options = test::sharded_over_all(world, GetParam());
      options.reshard_after_forward = false;
      const auto chain = test::sharded_chain(4, 2, options);
      nn::AdamW optimizer(chain->parameters(), {.lr = 0.1});
      for (int step = 0; step < 3; ++step) {
        losses[evaluates ? 1 : 0].push_back(test::forward_backward(*chain, test::toy_input(step, 2, 4)));
        optimizer.step();
        optimizer.zero_grad();
        if (!evaluates) continue;
        const autograd::NoGrad no_grad;
        (*chain)(test::toy_input(9, 2, 4));
      }
    }
    EXPECT_EQ(losses[0], losses[1]);
    EXPECT_NE(losses[0][0], losses[0][2]);
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, ForwardAlone, ::testing::Values(GatherLayout::kBuffered, GatherLayout::kFast),
                         [](const auto& info) { return info.param == GatherLayout::kFast ? "Fast" : "Buffered"; });

}  // namespace
}  // namespace loom::sharding
