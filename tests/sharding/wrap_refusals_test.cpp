// Promise: what cannot be sharded is refused before anything has changed, and a root that comes too late or without
//          values says so.
// World:   2 ranks as threads.
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/support/files.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using test::message_of;
using test::run_world;

TEST(FullyShard, TwiceOnOneModuleIsRefused) {
  run_world(2, [](RankContext&, comm::World& world) {
    const FullyShardOptions options = test::sharded_over_all(world);
    test::ToyBlock block(4);
    fully_shard(block, options);
    EXPECT_EQ(message_of<ConfigError>([&] { fully_shard(block, options); }),
              "fully_shard was applied twice to one ToyBlock; each module can be wrapped once");
  });
}

TEST(FullyShard, BelowAWrappedModuleIsRefused) {
  run_world(2, [](RankContext&, comm::World& world) {
    const FullyShardOptions options = test::sharded_over_all(world);
    test::ToyChain chain(4, 2);
    fully_shard(chain, options);
    EXPECT_EQ(
        message_of<ConfigError>([&] { fully_shard(chain.block(1), options); }),
        "fully_shard of a ToyBlock: a module above it is wrapped already and owns parameter 'weight'; wrap from the "
        "inside out: the modules below first, the root last");
    materialize_shards(chain);  // what was wrapped before goes on as it was
    nn::init_weights(chain, test::kToySeed);
    EXPECT_EQ(chain(test::toy_input(0, 4, 4)).tensor().shape(), (Shape{4, 4}));
  });
}

TEST(FullyShard, OfAListIsRefused) {
  run_world(2, [](RankContext&, comm::World& world) {
    const FullyShardOptions options = test::sharded_over_all(world);
    test::ToyChain chain(4, 2);
    EXPECT_EQ(message_of<ConfigError>([&] { fully_shard(chain.layers, options); }),
              "fully_shard of a ModuleList: it has no forward of its own; wrap its items (for example 'layers.{*}')");
  });
}

TEST(FullyShard, OfAnEmptyListIsRefused) {
  run_world(1, [](RankContext&, comm::World& world) {
    const FullyShardOptions options = test::sharded_over_all(world);
    EXPECT_EQ(message_of<ConfigError>([&] { fully_shard(std::vector<nn::Module*>{}, options); }),
              "fully_shard was given an empty list of modules; name at least one");
  });
}

TEST(CallsForAWrappedModule, AreRefusedForOneThatIsNot) {
  test::ToyBlock block(4);
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { set_modules_to_forward_prefetch(block, {}); }, [&] { set_unshard_in_backward(block, false); },
           [&] { set_reshard_after_forward(block, false, /*recurse=*/false); }, [&] { unshard(block); },
           [&] { reshard(block); }, [&] { share_comm_ctx({&block}); }}) {
    EXPECT_EQ(message_of<ConfigError>(call),
              "a ToyBlock is not wrapped by fully_shard; call fully_shard() on it first");
  }
}

class WithScalar final : public nn::Module {
 public:
  WithScalar()
      : weight(register_parameter("weight", {4, 4}, nn::Init::normal(1))),
        temperature(register_parameter("temperature", Shape{}, nn::Init::ones())) {}
  std::string_view type_name() const override { return "WithScalar"; }
  nn::ParamSlot& weight;
  nn::ParamSlot& temperature;

 protected:
  nn::Value forward(const nn::Args& args) override { return args.positional[0]; }
};

TEST(FullyShard, OfAParameterWithoutDimsIsRefusedAndNothingHasChanged) {
  run_world(2, [](RankContext&, comm::World& world) {
    const FullyShardOptions options = test::sharded_over_all(world);
    WithScalar model;
    const Tensor before = model.weight.value;
    EXPECT_EQ(message_of<ConfigError>([&] { fully_shard(model, options); }),
              "parameter 'temperature' of the wrapped WithScalar has no dims and cannot be sharded over dim 0; give it "
              "shape [1]");
    EXPECT_TRUE(model.weight.value.is_same(before));
    EXPECT_EQ(FsdpState::of(model), nullptr);
  });
}

TEST(FullyShard, ARootAfterAnInnerModuleRanOnItsOwnIsRefused) {
  run_world(2, [](RankContext&, comm::World& world) {
    const auto chain = test::sharded_chain(4, 2, test::sharded_over_all(world));
    const Tensor input = test::toy_input(0, 2, 4);
    chain->block(1)(input);
    EXPECT_EQ(
        message_of<ConfigError>([&] { (*chain)(input); }),
        "module 'layers.1' has run forward on its own before 'ToyChain' did, and is its own root now; run forward "
        "through the outer module first");
  });
}

TEST(FullyShard, AnInnerModuleMayRunOnItsOwnAfterTheRootHas) {
  run_world(2, [](RankContext&, comm::World& world) {
    const auto chain = test::sharded_chain(4, 2, test::sharded_over_all(world));
    const Tensor input = test::toy_input(0, 2, 4);
    test::forward_backward(*chain, input);
    const double through_root = (*chain)(input).tensor().to_vector<double>()[0];
    EXPECT_NO_THROW(test::forward_backward(chain->block(1), input));
    EXPECT_TRUE(FsdpState::of(*chain)->is_root());
    EXPECT_FALSE(FsdpState::of(chain->block(1))->is_root());
    EXPECT_EQ((*chain)(input).tensor().to_vector<double>()[0], through_root);
  });
}

TEST(FullyShard, AParameterLeftWithoutValuesIsNamedAtTheFirstForward) {
  run_world(2, [](RankContext&, comm::World& world) {
    test::ToyBlock block(4);
    fully_shard(block, test::sharded_over_all(world));
    EXPECT_EQ(message_of<ConfigError>([&] { block(test::toy_input(0, 2, 4)); }),
              "parameter 'weight' of group '(root)' has no values yet; initialise or load the weights before the first "
              "forward");
  });
}

class TwoDtypes final : public nn::Module {
 public:
  TwoDtypes()
      : wide(register_parameter("wide", {4, 4}, nn::Init::normal(1), DType::kF64)),
        narrow(register_parameter("narrow", {4, 4}, nn::Init::normal(1), DType::kF32)) {}
  std::string_view type_name() const override { return "TwoDtypes"; }
  nn::ParamSlot& wide;
  nn::ParamSlot& narrow;

 protected:
  nn::Value forward(const nn::Args& args) override { return ops::linear(args.tensor(0), narrow.value); }
};

TEST(FullyShard, TrainedParametersOfTwoDtypesInOneGroupAreRefused) {
  run_world(2, [](RankContext&, comm::World& world) {
    TwoDtypes model;
    fully_shard(model, test::sharded_over_all(world));
    materialize_shards(model);
    nn::init_weights(model, 1);
    EXPECT_EQ(
        message_of<ConfigError>([&] { model(test::toy_input(0, 2, 4)); }),
        "group '(root)' mixes trained parameters of fp64 ('wide') and fp32 ('narrow'); wrap them apart or give them "
        "one dtype");
  });
}

TEST(FullyShard, AFrozenParameterOfAnotherDtypeMaySitInTheGroup) {
  run_world(2, [](RankContext&, comm::World& world) {
    TwoDtypes model;
    model.wide.value.set_requires_grad(false);
    fully_shard(model, test::sharded_over_all(world));
    materialize_shards(model);
    nn::init_weights(model, 1);
    EXPECT_NO_THROW(test::forward_backward(model, test::toy_input(0, 2, 4)));
    EXPECT_FALSE(model.wide.value.grad().defined());
    EXPECT_TRUE(model.narrow.value.grad().defined());
  });
}

}  // namespace
}  // namespace loom::sharding
