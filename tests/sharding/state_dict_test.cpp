// Promise: parameters keep their paths, whole values come out whatever state the groups are in and go in on any number
//          of ranks; what is frozen before sharding stays frozen in the shards; a sharded model has every value
//          although it was made without any.
// World:   1 to 8 ranks as threads; root and 3 blocks of width 5 (uneven shards).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/nn/optim/adamw.h"
#include "sharding/full_parameters.h"
#include "sharding/parallelize.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr int kBlocks = 3;

using FullValues = std::map<std::string, std::vector<float>>;

FullValues full_values(nn::Module& model) {
  FullValues values;
  for_each_full_parameter(model,
                          [&](const std::string& path, const Tensor& full) { values[path] = full.to_vector<float>(); });
  return values;
}

FullValues trained_on(int ranks) {
  return test::of_each_rank(ranks,
                            [&](RankContext&, comm::World& world) {
                              const auto chain =
                                  test::sharded_chain(test::kOddWidth, kBlocks, test::sharded_over_all(world));
                              nn::AdamW optimizer(chain->parameters(), {});
                              test::forward_backward(*chain, test::toy_input(0, 3, test::kOddWidth));
                              optimizer.step();
                              return full_values(*chain);
                            })
      .front();
}

TEST(StateDict, KeysAreThePathsOfTheUnwrappedModel) {
  test::run_world(2, [](RankContext&, comm::World& world) {
    std::vector<std::string> paths;
    for (auto& [path, values] :
         full_values(*test::sharded_chain(test::kOddWidth, kBlocks, test::sharded_over_all(world)))) {
      paths.push_back(path);
    }
    EXPECT_THAT(paths, ElementsAre("layers.0.weight", "layers.1.weight", "layers.2.weight", "weight"));
  });
}

TEST(StateDict, BetweenForwardAndBackwardOfUnreshardedParametersIsThatOfTheShards) {
  test::run_world(2, [](RankContext&, comm::World& world) {
    FullyShardOptions options = test::sharded_over_all(world);
    options.reshard_after_forward = false;
    const auto chain = test::sharded_chain(test::kOddWidth, kBlocks, options);
    const FullValues before = full_values(*chain);
    const Tensor loss = ops::mean((*chain)(test::toy_input(0, 3, test::kOddWidth)));
    EXPECT_EQ(full_values(*chain), before);
    for (auto& [path, slot] : chain->named_slots()) EXPECT_LT(slot->value.shape()[0], test::kOddWidth) << path;
    autograd::backward(loss);
    EXPECT_EQ(test::gradients(*chain).size(), 4u);
  });
}

TEST(StateDict, OfEightRanksLoadsOnThreeBitForBit) {
  const FullValues saved = trained_on(8);
  test::run_world(3, [&](RankContext&, comm::World& world) {
    const auto chain = test::sharded_chain(test::kOddWidth, kBlocks, test::sharded_over_all(world));
    load_full_parameters(*chain, [&](const std::string& path) {
      const Tensor whole = Tensor::host({test::kOddWidth, test::kOddWidth}, DType::kF32, path);
      std::copy(saved.at(path).begin(), saved.at(path).end(), whole.data<float>());
      return whole;
    });
    EXPECT_EQ(full_values(*chain), saved);
  });
}

TEST(Freeze, BeforeShardingHoldsInTheShardsAndTheOptimizerSeesTheRest) {
  test::run_world(2, [](RankContext&, comm::World& world) {
    test::ToyChain chain(test::kOddWidth, kBlocks);
    chain.block(1).weight.value.set_requires_grad(false);
    test::wrap_chain(chain, test::sharded_over_all(world));
    materialize_shards(chain);
    nn::init_weights(chain, test::kToySeed);
    EXPECT_FALSE(chain.block(1).weight.value.requires_grad());
    const nn::AdamW optimizer(chain.parameters(), {});
    ASSERT_EQ(optimizer.parameters().size(), 3u);
    for (const Tensor& parameter : optimizer.parameters()) EXPECT_LE(parameter.shape()[0], 3);
  });
}

TEST(MetaInit, GivesEveryValueWhateverTheRanksAndReplicas) {
  const auto values_on = [](int ranks, int shard_size) {
    return test::of_each_rank(ranks, [&](RankContext&, comm::World& world) {
      const auto chain = test::sharded_chain(test::kOddWidth, kBlocks, test::sharded_over(world, shard_size));
      return full_values(*chain);
    });
  };
  const FullValues alone = values_on(1, 1).front();
  EXPECT_THAT(values_on(4, 2), Each(alone));
  EXPECT_THAT(values_on(3, 3), Each(alone));
}

TEST(IgnoredModules, ThatAreTrainedAreReportedAndFrozenOnesAreNot) {
  test::ToyChain chain(test::kOddWidth, kBlocks);
  const auto warnings = [&] {
    return resolve_fsdp2(chain, parse_fsdp2_config("sharding_size: auto\nignored_modules: [layers.1]", "f.yaml"), 2,
                         GatherLayout::kBuffered)
        .warnings;
  };
  EXPECT_THAT(warnings(), ElementsAre("ignored_modules: 'layers.1.weight' is trained, but ignored parameters are not "
                                      "reduced: its values drift apart between ranks; freeze it"));
  chain.block(1).weight.value.set_requires_grad(false);
  EXPECT_THAT(warnings(), ::testing::IsEmpty());
}

}  // namespace
}  // namespace loom::sharding
