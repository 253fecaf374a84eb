// Promise: ready nodes run in PyTorch's order: the node recorded last first, gradients of leaves as soon as they are
//          complete.
#include <gmock/gmock.h>
#include <string>

#include "tests/tensor/tensors.h"

namespace loom {
namespace {

using autograd::backward;
using test::leaf;
using test::sum;
using ::testing::ElementsAre;

class BackwardOrder : public ::testing::Test {
 protected:
  Tensor watched(const std::string& name, const Tensor& x) {
    x.register_hook([this, name](const Tensor&) {
      order.push_back(name);
      return Tensor{};
    });
    return x;
  }
  Tensor watched_leaf(const std::string& name) { return watched(name, leaf({1, 2})); }

  test::OneRank rank;
  std::vector<std::string> order;
};

TEST_F(BackwardOrder, TheNodeRecordedLastRunsFirst) {
  const Tensor x = leaf({1, 2});
  const Tensor first = watched("first", ops::scale(x, 2));
  const Tensor second = watched("second", ops::scale(x, 3));
  const Tensor third = watched("third", ops::scale(x, 4));
  // Added in another order than they were recorded in: all three are ready together.
  backward(sum(ops::add(ops::add(third, first), second)));
  EXPECT_THAT(order, ElementsAre("third", "second", "first"));
}

TEST_F(BackwardOrder, ALongBranchWaitsForWhatWasRecordedAfterIt) {
  const Tensor x = leaf({1, 2});
  Tensor early = x;
  for (int i = 0; i < 3; ++i) early = watched("early" + std::to_string(i), ops::scale(early, 2));
  Tensor late = x;
  for (int i = 0; i < 3; ++i) late = watched("late" + std::to_string(i), ops::scale(late, 2));
  backward(sum(ops::add(early, late)));
  EXPECT_THAT(order, ElementsAre("late2", "late1", "late0", "early2", "early1", "early0"));
}

TEST_F(BackwardOrder, ALeafsGradientGoesBeforeEverythingElse) {
  const Tensor w0 = watched_leaf("w0"), w1 = watched_leaf("w1"), x = leaf({1, 2});
  const Tensor h = watched("h", ops::mul(x, w0));
  const Tensor y = watched("y", ops::mul(h, w1));
  backward(sum(y));
  // y's node gives gradients to h and to w1: h's node is ready too, but the leaf goes first.
  EXPECT_THAT(order, ElementsAre("y", "w1", "h", "w0"));
}

TEST_F(BackwardOrder, LeavesThatBecomeReadyTogetherGoInTheOrderOfTheInputs) {
  const Tensor a = watched_leaf("a"), b = watched_leaf("b");
  backward(sum(ops::mul(a, b)));
  EXPECT_THAT(order, ElementsAre("a", "b"));
}

TEST_F(BackwardOrder, ALeafUsedTwiceWaitsForBothGradients) {
  const Tensor w = watched_leaf("w"), x = leaf({1, 2});
  const Tensor h = watched("h", ops::mul(x, w));
  const Tensor y = watched("y", ops::mul(h, w));
  backward(sum(y));
  EXPECT_THAT(order, ElementsAre("y", "h", "w"));
}

TEST_F(BackwardOrder, ANodeRunsOnceAllItsConsumersHaveRun) {
  const Tensor x = leaf({1, 2});
  const Tensor shared = watched("shared", ops::scale(x, 2));
  const Tensor side = watched("side", ops::scale(shared, 3));
  const Tensor main = watched("main", ops::mul(shared, side));
  backward(sum(main));
  EXPECT_THAT(order, ElementsAre("main", "side", "shared"));
}

}  // namespace
}  // namespace loom
