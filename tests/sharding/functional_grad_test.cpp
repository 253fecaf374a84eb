// Promise: functional gradients refuse sharded modules and sharded weights, whose gradients the groups reduce, and
//          leave them usable.
// World:   2 ranks as threads.
#include "engine/nn/functional_grad.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "tests/support/files.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using ::testing::HasSubstr;

TEST(FunctionalGradOfShards, IsRefused) {
  test::run_world(2, [](RankContext&, comm::World& world) {
    test::ToyBlock block(4);
    fully_shard(block, test::sharded_over_all(world));
    materialize_shards(block);
    nn::init_weights(block, test::kToySeed);
    const Tensor x = test::toy_input(0, 4, 4);
    EXPECT_THAT(test::message_of<ModelError>([&] { nn::grad(block)(x); }),
                HasSubstr("'ToyBlock' is sharded and runs in a function that value_and_grad() differentiates"));
    autograd::backward(ops::mean(block(x).tensor()));
    EXPECT_TRUE(block.parameters().at(0).grad().defined());
    EXPECT_THAT(test::message_of<ConfigError>(
                    [&] { nn::grad(block, {.positions = std::nullopt, .weights = block.named_parameters()}); }),
                HasSubstr("weight 'weight' is sharded, allowed are whole parameters"));
  });
}

}  // namespace
}  // namespace loom::sharding
