// Promise: modules wrapped together are one group, gathered before the first of them runs and resharded after the last;
//          ignored parameters are left whole, out of the reduction, and count once in the gradient norm.
// World:   2 ranks as threads; root and 3 blocks of width 4.
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/device/recorder.h"
#include "tests/support/issued.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

std::shared_ptr<test::ToyChain> wrapped_together(const FullyShardOptions& options) {
  auto chain = std::make_shared<test::ToyChain>(test::kEvenWidth, 3);
  fully_shard(std::vector<nn::Module*>{&chain->layers[0], &chain->layers[1]}, options);
  fully_shard(chain->layers[2], options);
  fully_shard(*chain, options);
  materialize_shards(*chain);
  nn::init_weights(*chain, test::kToySeed);
  return chain;
}

TEST(ModulesTogether, AreGatheredAndReducedOnce) {
  test::run_world(2, [](RankContext& context, comm::World& world) {
    FullyShardOptions options = test::sharded_over_all(world);
    options.reshard_after_forward = true;
    const auto chain = wrapped_together(options);
    const device::Recorder recorder(device::Device::current());
    test::forward_backward(*chain, test::toy_input(context.rank(), 3, test::kEvenWidth));
    std::string events;
    for (const test::Issued& entry : test::issued(recorder.recording())) {
      if (entry.is_mark() && entry.subject == "layers.0") events += fmt::format("{}[{}] ", entry.name, entry.count);
    }
    EXPECT_EQ(events, "AG[0] W[0] RE[0] AG[0] W[0] RE[0] RS[2] ");
  });
}

TEST(ModulesTogether, GiveTheGradientsOfModulesApart) {
  test::run_world(2, [](RankContext& context, comm::World& world) {
    const auto together = wrapped_together(test::sharded_over_all(world));
    const auto apart = test::sharded_chain(test::kEvenWidth, 3, test::sharded_over_all(world));
    const Tensor input = test::toy_input(context.rank(), 3, test::kEvenWidth);
    EXPECT_EQ(test::forward_backward(*together, input), test::forward_backward(*apart, input));
    EXPECT_EQ(test::gradients(*together), test::gradients(*apart));
  });
}

TEST(ModulesTogether, CannotBeTheOutermost) {
  test::run_world(2, [](RankContext&, comm::World& world) {
    test::ToyChain chain(test::kEvenWidth, 2);
    fully_shard(std::vector<nn::Module*>{&chain.layers[0], &chain.layers[1]}, test::sharded_over_all(world));
    materialize_shards(chain);
    try {
      chain.layers[0](test::toy_input(0, 3, test::kEvenWidth));
      ADD_FAILURE() << "not refused";
    } catch (const ConfigError& error) {
      EXPECT_STREQ(
          error.what(),
          "the outermost wrapped module must be a single one, but 2 modules wrapped together ('ToyBlock', ...) run "
          "first; wrap the model that holds them too");
    }
  });
}

TEST(IgnoredParameters, StayWholeAndAreNotReduced) {
  test::run_world(2, [](RankContext& context, comm::World& world) {
    test::ToyChain chain(test::kEvenWidth, 2);
    FullyShardOptions options = test::sharded_over_all(world);
    options.ignored_params = {chain.block(1).weight.value.id()};
    test::wrap_chain(chain, options);
    materialize_shards(chain);
    nn::init_weights(chain, test::kToySeed);
    EXPECT_EQ(chain.block(1).weight.value.shape(), (Shape{test::kEvenWidth, test::kEvenWidth}));
    EXPECT_EQ(chain.block(0).weight.value.shape(), (Shape{test::kEvenWidth / 2, test::kEvenWidth}));
    EXPECT_EQ(FsdpState::of(chain.layers[1])->group(), nullptr);
    test::forward_backward(chain, test::toy_input(context.rank(), 3, test::kEvenWidth));

    // The norm of the sharded gradients, and the mean over ranks of the squares of the ignored one.
    double sharded = 0, ignored = 0;
    for (auto& [path, values] : test::gradients(chain)) {
      for (const double value : values) (path == "layers.1.weight" ? ignored : sharded) += value * value;
    }
    std::array<double, 2> sums{sharded, ignored / 2};
    options.axes.shard.group().all_reduce(comm::kHostLane, sums.data(), 2, DType::kF64, comm::ReduceOp::sum(), "test");
    EXPECT_NEAR(grad_norm(chain), std::sqrt(sums[0] + sums[1]), 1e-12);
  });
}

}  // namespace
}  // namespace loom::sharding
