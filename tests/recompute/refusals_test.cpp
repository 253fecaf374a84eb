// Promise: a recompute that would lose gradients or be wrong is refused, with the module's path and what to do.
// World:   one rank.
#include <gmock/gmock.h>

#include "tests/recompute/toys.h"
#include "tests/support/files.h"

namespace loom {
namespace {

using recompute::RecomputeError;
using test::Kind;
using test::message_of;

TEST(RecomputeRefusals, ReentrantNeedsAnInputThatRequiresGrad) {
  test::OneRank rank;
  test::Chain chain({test::twist(2)});
  test::fill(chain);
  test::checkpoint(chain, Kind::kReentrant, "vision.blocks.0");
  EXPECT_EQ(message_of<ConfigError>([&] { chain(test::input(2, false)); }),
            "recompute of 'vision.blocks.0' with use_reentrant: true: none of the tensors it is called with requires a "
            "gradient, "
            "so its parameter 'vision.blocks.0.0.weight' would get none; use use_reentrant: false");
}

TEST(RecomputeRefusals, AFrozenModuleHasNoGradientToLose) {
  test::OneRank rank;
  const auto block = test::twist(2);
  test::fill(*block);
  block->weight.value.set_requires_grad(false);
  test::checkpoint(*block, Kind::kReentrant);
  EXPECT_FALSE((*block)(test::input(2, false)).tensor().requires_grad());
}

TEST(RecomputeRefusals, TheOtherKindNeedsNone) {
  test::OneRank rank;
  const auto block = test::twist(2);
  test::fill(*block);
  test::checkpoint(*block, Kind::kRecorded);
  autograd::backward(ops::mean((*block)(test::input(2, false))));
  EXPECT_TRUE(block->weight.value.grad().defined());
}

TEST(RecomputeRefusals, ReentrantNeedsAnOutputThatRequiresGrad) {
  test::OneRank rank;
  test::Fn block(2, [](const nn::Args&, const Tensor&) -> nn::Value { return Tensor::full({2}, DType::kF32, 1); });
  test::fill(block);
  test::checkpoint(block, Kind::kReentrant, "gate");
  const Tensor loss = ops::mean(block(test::input(2)));
  EXPECT_EQ(message_of<RecomputeError>([&] { autograd::backward(loss); }),
            "[rank 0] recompute of 'gate': none of the tensors it returns requires a gradient, so there is nothing to "
            "recompute; "
            "leave it out of recompute_modules");
}

// A block that multiplies by ones of another shape or number in its second forward.
std::shared_ptr<test::Fn> fickle(std::function<Tensor(const Tensor& x, bool again)> body) {
  auto count = std::make_shared<int>(0);
  return std::make_shared<test::Fn>(2, [count, body](const nn::Args& args, const Tensor&) -> nn::Value {
    return body(args.tensor(0), (*count)++ > 0);
  });
}

std::string refused_in_backward(const std::shared_ptr<test::Fn>& block, const recompute::CheckpointOptions& options) {
  test::fill(*block);
  recompute::checkpoint(*block, options);
  const Tensor loss = ops::mean((*block)(test::input(2)));
  return message_of<RecomputeError>([&] { autograd::backward(loss); });
}

TEST(RecomputeRefusals, ATensorOfAnotherShapeIsNamed) {
  test::OneRank rank;
  const auto block = fickle([](const Tensor& x, bool again) {
    const Tensor h = ops::reshape(ops::mul(x, x), again ? Shape{1, 2} : Shape{2});
    return ops::tanh(h);
  });
  EXPECT_EQ(refused_in_backward(block, {.path = "layers.3", .use_reentrant = false}),
            "[rank 0] recompute of 'layers.3': saved tensor 2 of 3 was fp32 [2] in forward and is fp32 [1, 2] when it "
            "runs again; "
            "forward must do the same both times");
}

TEST(RecomputeRefusals, ATensorOfAnotherDtypeIsNamed) {
  test::OneRank rank;
  const auto block = fickle([](const Tensor& x, bool again) {
    const Tensor h = ops::cast(x, again ? DType::kF64 : DType::kF32);
    return ops::cast(ops::mul(h, h), DType::kF32);
  });
  EXPECT_EQ(refused_in_backward(block, {.path = "layers.3", .use_reentrant = false}),
            "[rank 0] recompute of 'layers.3': saved tensor 0 of 2 was fp32 [2] in forward and is fp64 [2] when it "
            "runs again; "
            "forward must do the same both times");
}

TEST(RecomputeRefusals, FewerTensorsAreCounted) {
  test::OneRank rank;
  const auto block = fickle([](const Tensor& x, bool again) { return again ? ops::scale(x, 2) : ops::mul(x, x); });
  EXPECT_EQ(refused_in_backward(block, {.path = "layers.3", .use_reentrant = false}),
            "[rank 0] recompute of 'layers.3': forward saved 2 tensors for backward, and 0 when it ran again; it must "
            "do the same both "
            "times");
}

TEST(RecomputeRefusals, MoreTensorsAreCountedWithoutEarlyStop) {
  test::OneRank rank;
  const auto block = fickle([](const Tensor& x, bool again) {
    const Tensor h = ops::mul(x, x);
    return again ? ops::tanh(h) : h;
  });
  EXPECT_EQ(refused_in_backward(block, {.path = "layers.3", .use_reentrant = false, .early_stop = false}),
            "[rank 0] recompute of 'layers.3': forward saved 2 tensors for backward, and 3 when it ran again; it must "
            "do the same both "
            "times");
}

TEST(RecomputeRefusals, ReentrantNamesAnOutputOfAnotherShape) {
  test::OneRank rank;
  const auto block = fickle([](const Tensor& x, bool again) {
    return again ? ops::reshape(x, {1, 2}) : ops::scale(x, 2);
  });
  EXPECT_EQ(refused_in_backward(block, {.path = "layers.3"}),
            "[rank 0] recompute of 'layers.3': output 0 was fp32 [2] in forward and is fp32 [1, 2] when it runs again; "
            "forward must do "
            "the same both times");
}

TEST(RecomputeRefusals, AContainerHasNoForward) {
  nn::ModuleList list;
  EXPECT_EQ(message_of<ConfigError>([&] { test::checkpoint(list, Kind::kReentrant, "layers"); }),
            "recompute of 'layers': a ModuleList has no forward of its own; name its items: 'layers.{*}'");
}

TEST(RecomputeRefusals, OneModuleIsRecomputedOnce) {
  const auto block = test::twist(2);
  EXPECT_FALSE(recompute::is_checkpointed(*block));
  test::checkpoint(*block, Kind::kReentrant, "layers.3");
  EXPECT_TRUE(recompute::is_checkpointed(*block));
  EXPECT_EQ(message_of<ConfigError>([&] { test::checkpoint(*block, Kind::kRecorded, "layers.3"); }),
            "recompute of 'layers.3' was requested twice; each module can be recomputed once");
}

}  // namespace
}  // namespace loom
