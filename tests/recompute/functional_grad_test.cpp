// Promise: functional gradients go through recompute that is not reentrant, bit for bit; reentrant recompute, which
//          accumulates, is refused.
// World:   one rank; tanh(x * w) * w.
#include "engine/nn/functional_grad.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "tests/recompute/toys.h"
#include "tests/support/files.h"

namespace loom {
namespace {

nn::Gradients gradients_of(nn::Module& module) {
  const nn::GradSpec spec{.positions = 0, .weights = module.named_parameters()};
  return nn::grad(module, spec)(test::input(4)).gradients;
}

TEST(FunctionalGradOfRecompute, HasTheBitsWithoutIt) {
  test::OneRank rank;
  const auto plain = test::twist(4), checkpointed = test::twist(4);
  for (const auto& module : {plain, checkpointed}) test::fill(*module);
  test::checkpoint(*checkpointed, test::Kind::kRecorded);
  const nn::Gradients expected = gradients_of(*plain), gradients = gradients_of(*checkpointed);
  EXPECT_EQ(checkpointed->begun, 2);
  EXPECT_EQ(test::floats(gradients.inputs().tensor()), test::floats(expected.inputs().tensor()));
  EXPECT_EQ(test::floats(gradients.weights().tuple().at(0)), test::floats(expected.weights().tuple().at(0)));
  EXPECT_FALSE(checkpointed->weight.value.grad().defined());
}

TEST(FunctionalGradOfRecompute, IsRefusedWhenItIsReentrant) {
  test::OneRank rank;
  const auto module = test::twist(4);
  test::fill(*module);
  test::checkpoint(*module, test::Kind::kReentrant);
  EXPECT_THAT(test::message_of<ModelError>([&] { gradients_of(*module); }),
              ::testing::HasSubstr("reentrant recompute does so; use recompute with use_reentrant false, or none"));
  EXPECT_FALSE(module->weight.value.grad().defined());
}

// A region that calls value_and_grad() on its own runs it again in backward.
TEST(FunctionalGradOfRecompute, MayRunInsideTheRegion) {
  for (const test::Kind kind : {test::Kind::kReentrant, test::Kind::kRecorded}) {
    test::OneRank rank;
    int calls = 0;
    test::Fn block(4, [&](const nn::Args& args, const Tensor& w) -> nn::Value {
      ++calls;
      const auto square = [](const Tensor& x) { return ops::mul(x, x); };
      return ops::mul(w, nn::grad(square)(args.tensor(0).detach()).gradients.tensor());
    });
    test::fill(block);
    test::checkpoint(block, kind);
    const Tensor x = test::input(4);
    autograd::backward(ops::mean(block(ops::scale(x, 1)).tensor()));
    EXPECT_EQ(calls, 2);
    const std::vector<float> expected = test::floats(ops::scale(x.detach(), 0.5));  // 2 x / 4
    EXPECT_EQ(test::floats(block.weight.value.grad()), expected);
  }
}

}  // namespace
}  // namespace loom
