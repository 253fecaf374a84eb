// Promise: a recompute sees the dtypes of the first forward, also with the checkpoint outside of the sharding and fp32
//          inputs to bf16 modules.
// World:   2 ranks as threads; one block of width 4 that notes what it is given.
#include <gmock/gmock.h>

#include "engine/nn/init.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "recompute/checkpoint.h"
#include "sharding/fully_shard.h"
#include "tests/support/world.h"

namespace loom {
namespace {

using ::testing::ElementsAre;

class NotingBlock final : public nn::Module {
 public:
  NotingBlock() : weight(register_parameter("weight", {4, 4}, nn::Init::normal(0.5))) {}
  std::string_view type_name() const override { return "NotingBlock"; }
  nn::ParamSlot& weight;
  std::vector<DType> seen;

 protected:
  nn::Value forward(const nn::Args& args) override {
    seen.push_back(args.tensor(0).dtype());
    return ops::tanh(ops::linear(args.tensor(0), weight.value));
  }
};

class EachKind : public ::testing::TestWithParam<bool> {};

TEST_P(EachKind, OutsideOfTheShardingCastsTheInputsAgain) {
  test::run_world(2, [](RankContext&, comm::World& world) {
    sharding::FullyShardOptions options = test::sharded_over_all(world);
    options.policy.param_dtype = DType::kBF16;
    NotingBlock block;
    sharding::fully_shard(block, options);
    sharding::materialize_shards(block);
    nn::init_weights(block, 3);
    recompute::checkpoint(block, {.path = "block", .use_reentrant = GetParam()});
    const Tensor input = Tensor::full({2, 4}, DType::kF32, 0.25);
    input.set_requires_grad(true);
    const Tensor loss = ops::mean(block(input));
    autograd::backward(loss);
    EXPECT_THAT(block.seen, ElementsAre(DType::kBF16, DType::kBF16));
    EXPECT_EQ(input.grad().dtype(), DType::kF32);
    EXPECT_TRUE(block.weight.value.grad().defined());
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, EachKind, ::testing::Bool());

}  // namespace
}  // namespace loom
