// Promise: backward gives the derivatives of small graphs worked out by hand, and collects them in the leaves.
#include "engine/tensor/autograd.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "tests/tensor/tensors.h"

namespace loom {
namespace {

using autograd::backward;
using test::constant;
using test::grad;
using test::leaf;
using test::sum;
using ::testing::ElementsAre;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

TEST(Backward, OfAProduct) {  // L = sum(a b): dL/da = b, dL/db = a
  test::OneRank rank;
  const Tensor a = leaf({2, 3}), b = leaf({5, 7});
  backward(sum(ops::mul(a, b)));
  EXPECT_THAT(grad(a), ElementsAre(5, 7));
  EXPECT_THAT(grad(b), ElementsAre(2, 3));
}

TEST(Backward, AddsThePathsOfATensorThatIsUsedTwice) {  // L = sum(x x + 3 x): 2 x + 3
  test::OneRank rank;
  const Tensor x = leaf({2, -1});
  backward(sum(ops::add(ops::mul(x, x), ops::scale(x, 3))));
  EXPECT_THAT(grad(x), ElementsAre(7, 1));
}

TEST(Backward, OfADiamond) {  // y = 2 x; L = sum(y * y + y * x) = sum(6 x^2): 12 x
  test::OneRank rank;
  const Tensor x = leaf({1, 2});
  const Tensor y = ops::scale(x, 2);
  backward(sum(ops::add(ops::mul(y, y), ops::mul(y, x))));
  EXPECT_THAT(grad(x), ElementsAre(12, 24));
}

TEST(Backward, SumsOverBroadcastRows) {  // L = sum(a + b), b a row of a's three
  test::OneRank rank;
  const Tensor a = leaf({0, 0, 0, 0, 0, 0}, {3, 2}), b = leaf({1, 2});
  backward(sum(ops::add(a, b)));
  EXPECT_THAT(grad(b), ElementsAre(3, 3));
}

struct Weights {
  Tensor first, second, third, norm, bias;
};

// Five consumers of one tensor, of which each but the last to run adds its gradient to a sum; its gradient. `pass`
// stands between the tensor and each of them.
test::Doubles gradient_of_a_shared_tensor(DType dtype, const std::function<Tensor(const Tensor&)>& pass) {
  const auto made = [dtype](std::uint64_t stream, const Shape& shape) {
    return leaf(test::normals(shape.numel(), stream), shape, dtype);
  };
  const Weights w{made(1, {8, 6}), made(2, {4, 6}), made(3, {6, 5}), made(4, {6}), made(5, {6})};
  const Tensor x = made(6, {3, 6});
  const Tensor shared = ops::scale(x, 1);
  const Tensor loss = ops::add(
      ops::add(sum(ops::linear(pass(shared), w.first)), sum(ops::rms_norm(pass(shared), w.norm, 1e-5))),
      ops::add(ops::add(sum(ops::linear_kn(pass(shared), w.third, {})), sum(ops::linear(pass(shared), w.second))),
               sum(ops::layer_norm(pass(shared), w.norm, w.bias, 1e-5))));
  backward(loss);
  return grad(x);
}

TEST(Backward, OperatorsThatAddTheirGradientToASumGiveTheBitsOfAnAddition) {
  test::OneRank rank;
  const auto nothing = [](const Tensor& x) { return x; };
  const auto identity = [](const Tensor& x) {  // the tape adds where no operator does
    return autograd::identity_with_backward("pass", {x}, [] {}).front();
  };
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    EXPECT_EQ(gradient_of_a_shared_tensor(dtype, nothing), gradient_of_a_shared_tensor(dtype, identity)) << name(dtype);
  }
}

// L = sum(x x^T + 2 x): both edges of one product lead to x's sum, after that of the scaling. d/dx of sum(x x^T), x of
// one row, is 2 x.
TEST(Backward, AnOperatorThatUsesATensorTwiceAddsBothGradients) {
  test::OneRank rank;
  const Tensor x = leaf({3, -1}, {1, 2});
  const Tensor shared = ops::scale(x, 1);
  const Tensor product = ops::linear(shared, shared);
  const Tensor scaled = ops::scale(shared, 2);  // runs first
  backward(ops::add(sum(product), sum(scaled)));
  EXPECT_THAT(grad(x), ElementsAre(8, 0));
}

TEST(Backward, AGradientThatSomebodyHoldsIsNotAddedTo) {
  test::OneRank rank;
  const Tensor x = leaf({3, -1}, {1, 2}), w = leaf({1, 2}, {1, 2});
  const Tensor shared = ops::scale(x, 1);
  const Tensor product = ops::linear(shared, w);
  const Tensor later = autograd::identity_with_backward("later", {shared}, [] {}).front();  // runs first
  Tensor held;
  later.register_hook([&](const Tensor& grad) {
    held = grad;
    return Tensor{};
  });
  backward(ops::add(sum(product), sum(later)));
  EXPECT_THAT(test::values(held), ElementsAre(1, 1));
  EXPECT_THAT(grad(x), ElementsAre(2, 3));
}

TEST(Backward, StartsFromAGivenGradient) {
  test::OneRank rank;
  const Tensor x = leaf({1, 2});
  backward(ops::scale(x, 10), constant({1, 0.5}));
  EXPECT_THAT(grad(x), ElementsAre(10, 5));
}

TEST(Backward, OfPartsFillsTheOthersWithZeros) {
  test::OneRank rank;
  const Tensor x = leaf({1, 2, 3, 4, 5, 6}, {2, 3});
  backward(sum(ops::split_last(x, {1, 2})[1]));
  EXPECT_THAT(grad(x), ElementsAre(0, 1, 1, 0, 1, 1));
}

TEST(Backward, AccumulatesIntoLeavesOverCalls) {
  test::OneRank rank;
  const Tensor x = leaf({1, 2});
  for (int i = 0; i < 3; ++i) backward(sum(ops::scale(x, 2)));
  EXPECT_THAT(grad(x), ElementsAre(6, 6));
  x.set_grad({});
  backward(sum(ops::scale(x, 2)));
  EXPECT_THAT(grad(x), ElementsAre(2, 2));
}

TEST(Backward, LeavesGivenTheSameGradientDoNotShareBytes) {
  test::OneRank rank;
  const Tensor a = leaf({1, 2}), b = leaf({3, 4});
  backward(sum(ops::add(a, b)));  // add hands one tensor to both
  EXPECT_NE(a.grad().raw(), b.grad().raw());
  a.grad().fill(0);
  EXPECT_THAT(grad(b), ElementsAre(1, 1));
}

TEST(Backward, ALeafTakesTheBytesOfAGradientNobodyElseHolds) {
  test::OneRank rank;
  const Tensor x = leaf({1, 2});
  const void* bytes = nullptr;
  const Tensor y = ops::scale(x, 2);
  x.register_hook([&](const Tensor& grad) {
    bytes = grad.raw();
    return Tensor{};
  });
  backward(sum(y));
  EXPECT_EQ(x.grad().raw(), bytes);
  EXPECT_EQ(rank.stats().by_category[device::MemCategory::kGradient], 512);
}

TEST(Backward, TheCallersGradientIsNotTaken) {
  test::OneRank rank;
  const Tensor x = leaf({1, 2});
  const Tensor given = constant({3, 4});
  backward(ops::reshape(x, {2}), given);
  backward(ops::reshape(x, {2}), given);
  EXPECT_THAT(test::values(given), ElementsAre(3, 4));
  EXPECT_THAT(grad(x), ElementsAre(6, 8));
}

TEST(Backward, FromALeafIsItsGradient) {
  test::OneRank rank;
  const Tensor x = leaf({5}, {});
  backward(x);
  EXPECT_THAT(grad(x), ElementsAre(1));
}

TEST(Backward, TheSecondThroughANodeIsAnError) {
  test::OneRank rank;
  const Tensor y = ops::mean(leaf({1, 2}));
  backward(y);
  EXPECT_THAT([&] { backward(y); }, ThrowsMessage<ModelError>(StrEq(
                                        "[rank 0] a second backward through 'mean': its saved tensors are freed after "
                                        "the first; run the forward again, or add the losses and run one backward")));
}

TEST(Backward, NeedsAGraphAndAGradientOfTheRightSize) {
  test::OneRank rank;
  EXPECT_THAT([] { backward(constant({1})); },
              ThrowsMessage<ModelError>(StrEq("[rank 0] backward from a tensor that requires no gradient: none of its "
                                              "inputs requires one, or the grad mode was off")));
  EXPECT_THAT(
      [] {
        backward(leaf({1, 2}));
      },
      ThrowsMessage<ModelError>(StrEq(
          "[rank 0] backward from a tensor with 2 elements needs its gradient; give one, or take the mean first")));
}

TEST(Backward, SavedTensorsAreFreedAsItGoes) {
  test::OneRank rank;
  const Tensor x = leaf(test::normals(1000, 1));
  Tensor loss;
  {
    const Tensor y = ops::silu(x);
    loss = sum(ops::mul(y, y));
  }
  EXPECT_EQ(rank.bytes(), 2 * 8192 + 512);  // x and y of 8000 bytes are saved; the product is gone; the loss
  backward(loss);
  loss = {};
  EXPECT_EQ(rank.bytes(), 2 * 8192);  // x and its gradient
}

TEST(NoGrad, NothingIsRecordedInItsScope) {
  test::OneRank rank;
  const Tensor x = leaf({1});
  {
    const autograd::NoGrad no_grad;
    EXPECT_FALSE(ops::scale(x, 2).requires_grad());
    {
      const autograd::GradMode on(true);
      EXPECT_TRUE(ops::scale(x, 2).requires_grad());
    }
    EXPECT_FALSE(autograd::grad_enabled());
  }
  EXPECT_TRUE(ops::scale(x, 2).requires_grad());
  EXPECT_FALSE(ops::scale(constant({1}), 2).requires_grad());
}

TEST(NoGrad, ItsScopeEndsWithAnException) {
  test::OneRank rank;
  try {
    const autograd::NoGrad no_grad;
    constant({1, 2}).item();
  } catch (const ModelError&) {
  }
  EXPECT_TRUE(autograd::grad_enabled());
}

TEST(IdentityWithBackward, RunsOnceAllGradientsAreThere) {
  test::OneRank rank;
  const Tensor a = leaf({1, 2}), b = leaf({3, 4}), frozen = constant({5});
  const Tensor inner = ops::scale(a, 2);
  int runs = 0;
  const std::vector<Tensor> through = autograd::identity_with_backward("post_backward", {inner, frozen, b}, [&] {
    ++runs;
    EXPECT_FALSE(a.grad().defined());
    EXPECT_FALSE(b.grad().defined());
  });
  ASSERT_EQ(through.size(), 3u);
  EXPECT_EQ(through[0].raw(), inner.raw());
  EXPECT_EQ(through[2].raw(), b.raw());
  EXPECT_TRUE(through[1].is_same(frozen));
  backward(sum(ops::mul(through[0], through[2])));  // 2 a b
  EXPECT_EQ(runs, 1);
  EXPECT_THAT(grad(a), ElementsAre(6, 8));
  EXPECT_THAT(grad(b), ElementsAre(2, 4));
}

TEST(IdentityWithBackward, ReturnsTheInputsWhenNothingIsRecorded) {
  test::OneRank rank;
  const Tensor x = constant({1});
  EXPECT_TRUE(autograd::identity_with_backward("id", {x}, [] { FAIL(); })[0].is_same(x));
  const autograd::NoGrad no_grad;
  const Tensor y = leaf({1});
  EXPECT_TRUE(autograd::identity_with_backward("id", {y}, [] { FAIL(); })[0].is_same(y));
}

TEST(IdentityWithBackward, PassesOnTheGradientsThatCame) {
  test::OneRank rank;
  const Tensor a = leaf({1}), b = leaf({2});
  const auto through = autograd::identity_with_backward("id", {a, b}, [] {});
  backward(sum(through[1]));
  EXPECT_FALSE(a.grad().defined());
  EXPECT_THAT(grad(b), ElementsAre(1));
}

TEST(Graph, AChainOfAHundredThousandNodesRunsAndIsFreed) {
  test::OneRank rank;
  const Tensor x = leaf({1}, {});
  Tensor y = x;
  for (int i = 0; i < 100000; ++i) y = ops::scale(y, 1.0);
  backward(y);
  EXPECT_THAT(grad(x), ElementsAre(1));
  y = ops::scale(x, 1.0);
  for (int i = 0; i < 100000; ++i) y = ops::scale(y, 1.0);
  y = {};  // taken apart without recursion
}

}  // namespace
}  // namespace loom
