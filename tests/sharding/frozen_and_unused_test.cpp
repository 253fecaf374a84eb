// Promise: every gradient there is is reduced exactly once a backward; frozen parameters and blocks that did not run
//          are left out.
// World:   2 ranks as threads; root R and blocks 0, 1, 2 of width 4.
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/device/recorder.h"
#include "engine/nn/optim/adamw.h"
#include "tests/support/issued.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using test::run_world;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// Two weights, y = tanh(x . first^T) . second^T.
class TwoWeights final : public nn::Module {
 public:
  TwoWeights()
      : first(register_parameter("first", {4, 4}, nn::Init::normal(0.5))),
        second(register_parameter("second", {4, 4}, nn::Init::normal(0.5))) {}
  std::string_view type_name() const override { return "TwoWeights"; }
  nn::ParamSlot& first;
  nn::ParamSlot& second;

 protected:
  nn::Value forward(const nn::Args& args) override {
    return ops::linear(ops::tanh(ops::linear(args.tensor(0), first.value)), second.value);
  }
};

// (group, parameters) of every reduction of a backward, in order.
std::vector<std::pair<std::string, std::int64_t>> reductions_of(nn::Module& model) {
  const device::Recorder recorder(device::Device::current());
  test::forward_backward(model, test::toy_input(0, 2, 4));
  std::vector<std::pair<std::string, std::int64_t>> found;
  for (const test::Issued& entry : test::issued(recorder.recording())) {
    if (entry.is_mark() && entry.name == "RS") found.emplace_back(entry.subject, entry.count);
  }
  return found;
}

TEST(Frozen, IsGatheredGetsNoGradientAndIsNotReducedUntilItIsUnfrozen) {
  run_world(2, [](RankContext&, comm::World& world) {
    TwoWeights model;
    model.first.value.set_requires_grad(false);
    fully_shard(model, test::sharded_over_all(world));
    materialize_shards(model);
    nn::init_weights(model, 1);
    EXPECT_THAT(reductions_of(model), ElementsAre(Pair("", 1)));
    EXPECT_FALSE(model.first.value.grad().defined());
    EXPECT_TRUE(model.second.value.grad().defined());
    const Param& frozen = *FsdpState::of(model)->group()->params().front();
    EXPECT_FALSE(frozen.unsharded().requires_grad());

    model.first.value.set_requires_grad(true);
    model.second.value.set_grad({});
    EXPECT_THAT(reductions_of(model), ElementsAre(Pair("", 2)));
    EXPECT_TRUE(model.first.value.grad().defined());
  });
}

TEST(Frozen, TheReductionHoldsTheBytesOfTheTrainedParametersAlone) {
  run_world(2, [](RankContext&, comm::World& world) {
    TwoWeights model;
    model.first.value.set_requires_grad(false);
    fully_shard(model, test::sharded_over_all(world));
    materialize_shards(model);
    nn::init_weights(model, 1);
    const device::Recorder recorder(device::Device::current());
    test::forward_backward(model, test::toy_input(0, 2, 4));
    for (const test::Issued& entry : test::issued(recorder.recording())) {
      if (!entry.is_mark()) continue;
      if (entry.name == "AG") {
        EXPECT_EQ(entry.bytes, 2 * 2 * 4 * 4);  // both: 2 of 4 rows, 4 floats a row
      }
      if (entry.name == "RS") {
        EXPECT_EQ(entry.bytes, 4 * 4 * 4);  // `second` whole
      }
    }
  });
}

TEST(Reduction, OfBlocksWhoseInputRequiresNoGradComesOnceInTheFinalCallbackRootFirst) {
  run_world(2, [](RankContext&, comm::World& world) {
    const auto chain = test::sharded_chain(4, 3, test::sharded_over_all(world));
    chain->detached = true;
    // Block 0's input requires no gradient: its reduction waits for the end, where the root, also without one, goes
    // first.
    EXPECT_THAT(reductions_of(*chain),
                ElementsAre(Pair("layers.2", 1), Pair("layers.1", 1), Pair("", 1), Pair("layers.0", 1)));
  });
}

TEST(Reduction, InTheFinalCallbackGivesTheGradientsOfUnshardedTraining) {
  std::vector<std::pair<std::string, std::vector<double>>> whole;
  run_world(1, [&](RankContext&, comm::World&) {
    const auto chain = test::whole_chain(4, 3);
    chain->detached = true;
    test::forward_backward(*chain, test::toy_input(0, 2, 4));
    whole = test::gradients(*chain);
  });
  run_world(2, [&](RankContext&, comm::World& world) {
    const auto chain = test::sharded_chain(4, 3, test::sharded_over_all(world));
    chain->detached = true;
    test::forward_backward(*chain, test::toy_input(0, 2, 4));  // the same on both ranks: (g + g) / 2 = g
    const auto shards = test::gradients(*chain);
    ASSERT_EQ(shards.size(), whole.size());
    for (std::size_t i = 0; i < whole.size(); ++i) {
      EXPECT_EQ(shards[i].second, test::rows_of(whole[i].second, 2 * world.rank(), 2, 4)) << whole[i].first;
    }
  });
}

TEST(UnusedBlock, GetsNoGradientAndStaysAsItIsAndComesBackInTheNextStep) {
  run_world(2, [](RankContext&, comm::World& world) {
    const auto chain = test::sharded_chain(4, 3, test::sharded_over_all(world));
    nn::AdamW optimizer(chain->parameters(), {.lr = 0.1});
    chain->skipped = {1};
    const std::vector<float> before = chain->block(1).weight.value.to_vector<float>();
    EXPECT_THAT(reductions_of(*chain), ElementsAre(Pair("layers.2", 1), Pair("layers.0", 1), Pair("", 1)));
    EXPECT_FALSE(chain->block(1).weight.value.grad().defined());
    optimizer.step();
    optimizer.zero_grad();
    EXPECT_EQ(chain->block(1).weight.value.to_vector<float>(), before);
    chain->skipped = {};
    EXPECT_THAT(reductions_of(*chain),
                ElementsAre(Pair("layers.2", 1), Pair("layers.1", 1), Pair("layers.0", 1), Pair("", 1)));
    optimizer.step();
    EXPECT_NE(chain->block(1).weight.value.to_vector<float>(), before);
  });
}

TEST(UnusedBlock, OnOneRankAloneIsAnErrorThatNamesTheDifferenceAndNoHang) {
  std::string text;
  try {
    run_world(2,
              [](RankContext& context, comm::World& world) {
                const auto chain = test::sharded_chain(4, 3, test::sharded_over_all(world));
                if (context.rank() == 1) chain->skipped = {1};
                test::forward_backward(*chain, test::toy_input(0, 2, 4));
              },
              {.timeout = std::chrono::seconds(10)});
  } catch (const CommError& error) {
    text = error.what();
  }
  // After block 0, rank 0 gathers block 1 and rank 1 block 2.
  EXPECT_THAT(text, HasSubstr("'layers.1'"));
  EXPECT_THAT(text, HasSubstr("'layers.2'"));
}

TEST(Backward, TwiceThroughTheChainAddsTheGradients) {
  run_world(2, [](RankContext&, comm::World& world) {
    const auto chain = test::sharded_chain(4, 2, test::sharded_over_all(world));
    test::forward_backward(*chain, test::toy_input(0, 2, 4));
    const auto once = test::gradients(*chain);
    test::forward_backward(*chain, test::toy_input(0, 2, 4));
    const auto twice = test::gradients(*chain);
    ASSERT_EQ(once.size(), twice.size());
    for (std::size_t i = 0; i < once.size(); ++i) {
      for (std::size_t k = 0; k < once[i].second.size(); ++k) {
        EXPECT_EQ(twice[i].second[k], 2 * once[i].second[k]) << once[i].first;  // g + g, exactly
      }
    }
  });
}

TEST(Backward, OfABlockThatRanTwiceReducesWhatBothUsesAdd) {
  // Two uses in one forward: the first post-backward reduces its share, the later one adds its own.
  class Twice final : public nn::Module {
   public:
    Twice() : block(register_module("block", std::make_shared<test::ToyBlock>(4))) {}
    std::string_view type_name() const override { return "Twice"; }
    test::ToyBlock& block;

   protected:
    nn::Value forward(const nn::Args& args) override { return block(block(args.tensor(0))); }
  };
  std::vector<double> whole;
  run_world(1, [&](RankContext&, comm::World&) {
    Twice model;
    nn::materialize(model);
    nn::init_weights(model, 1);
    const Tensor input = test::toy_input(0, 2, 4);
    input.set_requires_grad(true);
    test::forward_backward(model, input);
    whole = model.block.weight.value.grad().to_vector<double>();
  });
  run_world(2, [&](RankContext&, comm::World& world) {
    Twice model;
    const FullyShardOptions options = test::sharded_over_all(world);
    fully_shard(model.block, options);
    fully_shard(model, options);
    materialize_shards(model);
    nn::init_weights(model, 1);
    const Tensor input = test::toy_input(0, 2, 4);
    input.set_requires_grad(true);
    test::forward_backward(model, input);
    // a + b in fp32, whichever is reduced first: addition of two is commutative, halves are exact.
    EXPECT_EQ(model.block.weight.value.grad().to_vector<double>(), test::rows_of(whole, 2 * world.rank(), 2, 4));
  });
}

}  // namespace
}  // namespace loom::sharding
