// Promise: tensor hooks run once, in registration order, on the complete gradient, and may replace it; post-accumulate
//          hooks follow.
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

Tensor unchanged() { return {}; }

TEST(TensorHook, SeesTheCompleteGradientOfAResult) {  // y used twice: 3 + 4
  test::OneRank rank;
  const Tensor y = ops::scale(leaf({1}), 1);
  std::vector<double> seen;
  y.register_hook([&](const Tensor& g) {
    seen.push_back(g.item());
    return unchanged();
  });
  backward(sum(ops::add(ops::scale(y, 3), ops::scale(y, 4))));
  EXPECT_THAT(seen, ElementsAre(7));
}

TEST(TensorHook, HooksOfATensorRunInRegistrationOrderOnEachOthersResult) {
  test::OneRank rank;
  const Tensor x = leaf({1}), y = ops::scale(x, 1);
  y.register_hook([](const Tensor& g) { return ops::add(g, constant({10})); });
  y.register_hook([](const Tensor& g) { return ops::scale(g, 2); });
  backward(sum(y));
  EXPECT_THAT(grad(x), ElementsAre((1 + 10) * 2));
}

TEST(TensorHook, OnALeafMayReplaceWhatIsCollected) {
  test::OneRank rank;
  const Tensor x = leaf({1, 1});
  x.register_hook([](const Tensor& g) { return ops::scale(g, 0.5); });
  backward(sum(ops::scale(x, 6)));
  backward(sum(ops::scale(x, 6)));
  EXPECT_THAT(grad(x), ElementsAre(6, 6));
}

TEST(TensorHook, AReplacementItsOwnerKeepsIsCopiedNotTaken) {
  test::OneRank rank;
  const Tensor x = leaf({1, 1});
  const Tensor kept = constant({4, 5});
  x.register_hook([&](const Tensor&) { return kept; });
  backward(sum(x));
  backward(sum(x));
  EXPECT_THAT(test::values(kept), ElementsAre(4, 5));
  EXPECT_THAT(grad(x), ElementsAre(8, 10));
}

TEST(TensorHook, BelongsToOneOutputOfItsNode) {
  test::OneRank rank;
  const Tensor x = leaf({1, 2, 3}, {1, 3});
  const std::vector<Tensor> parts = ops::split_last(x, {1, 2});
  std::vector<std::string> seen;
  for (int i = 0; i < 2; ++i) {
    parts[static_cast<std::size_t>(i)].register_hook([&seen, i](const Tensor& g) {
      seen.push_back(std::to_string(i) + ": " + to_string(g.shape()));
      return unchanged();
    });
  }
  backward(ops::add(sum(parts[0]), sum(parts[1])));
  EXPECT_THAT(seen, ElementsAre("0: [1, 1]", "1: [1, 2]"));
}

TEST(TensorHook, OfAnOutputWithoutGradientDoesNotRun) {
  test::OneRank rank;
  const std::vector<Tensor> parts = ops::split_last(leaf({1, 2, 3}, {1, 3}), {1, 2});
  parts[0].register_hook([](const Tensor&) {
    ADD_FAILURE();
    return unchanged();
  });
  backward(sum(parts[1]));
}

TEST(TensorHook, RunsWithoutRecording) {
  test::OneRank rank;
  const Tensor y = ops::scale(leaf({1}), 1);
  y.register_hook([](const Tensor&) {
    EXPECT_FALSE(autograd::grad_enabled());
    EXPECT_TRUE(autograd::in_backward());
    return unchanged();
  });
  backward(sum(y));
  EXPECT_TRUE(autograd::grad_enabled());
  EXPECT_FALSE(autograd::in_backward());
}

TEST(PostAccumulateHook, SeesTheLeafWithItsSum) {
  test::OneRank rank;
  const Tensor x = leaf({1});
  std::vector<double> seen;
  x.register_post_accumulate_hook([&](const Tensor& w) { seen.push_back(w.grad().item()); });
  backward(sum(ops::scale(x, 2)));
  backward(sum(ops::scale(x, 3)));
  EXPECT_THAT(seen, ElementsAre(2, 5));
}

TEST(PostAccumulateHook, MayTakeTheGradientAway) {
  test::OneRank rank;
  const Tensor x = leaf({1});
  Tensor taken;
  x.register_post_accumulate_hook([&](const Tensor& w) {
    taken = w.grad();
    w.set_grad({});
  });
  backward(sum(ops::scale(x, 2)));
  EXPECT_FALSE(x.grad().defined());
  EXPECT_EQ(taken.item(), 2);
}

TEST(PostAccumulateHook, NeedsALeaf) {
  test::OneRank rank;
  const Tensor y = ops::scale(leaf({1}), 1);
  EXPECT_THAT([&] { y.register_post_accumulate_hook([](const Tensor&) {}); },
              ThrowsMessage<ModelError>(StrEq("[rank 0] a post-accumulate hook needs a leaf that requires grad; "
                                              "register_hook() takes results of operators")));
}

}  // namespace
}  // namespace loom
