// Promise: backward may run inside a node of another one, and from several results at once; callbacks run at the end of
//          the graph they were queued in.
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

// f(x) without a graph; backward runs f again with one and goes through it: reentrant recompute.
Tensor recomputed(const std::function<Tensor(const Tensor&)>& f, const Tensor& x) {
  Tensor y;
  {
    const autograd::NoGrad no_grad;
    y = f(x);
  }
  autograd::record("recompute", {x}, {x}, {y},
                   [f](autograd::Saved saved, const autograd::Grads& grads, const autograd::Needs&) -> autograd::Grads {
                     const autograd::GradMode on(true);
                     const Tensor again = saved[0].detach().set_requires_grad(true);
                     backward(f(again), grads[0]);
                     return {again.grad()};
                   });
  return y;
}

TEST(ReentrantBackward, GivesTheGradientsOfThePlainOne) {
  test::OneRank rank;
  const Tensor w = leaf({2, 3}), x = leaf({5, 7});
  const auto block = [&](const Tensor& h) { return ops::mul(ops::mul(h, h), w); };  // w h^2
  backward(sum(recomputed(block, ops::scale(x, 2))));                               // 4 w x^2
  EXPECT_THAT(grad(x), ElementsAre(8 * 2 * 5, 8 * 3 * 7));
  EXPECT_THAT(grad(w), ElementsAre(4 * 25, 4 * 49));
}

TEST(ReentrantBackward, Nests) {
  test::OneRank rank;
  const Tensor x = leaf({3});
  const auto square = [](const Tensor& h) { return ops::mul(h, h); };
  const auto fourth = [&](const Tensor& h) { return recomputed(square, recomputed(square, h)); };
  backward(sum(recomputed(fourth, x)));
  EXPECT_THAT(grad(x), ElementsAre(4 * 27));
}

TEST(ReentrantBackward, EachCallHasItsOwnNumber) {
  test::OneRank rank;
  const Tensor x = leaf({3});
  std::vector<std::uint64_t> inside, outside;
  const auto block = [&](const Tensor& h) {
    const Tensor y = ops::scale(h, 2);
    if (y.requires_grad()) {
      y.register_hook([&](const Tensor&) {
        inside.push_back(autograd::graph_task_id());
        return Tensor{};
      });
    }
    return y;
  };
  const Tensor y = recomputed(block, x);
  y.register_hook([&](const Tensor&) {
    outside.push_back(autograd::graph_task_id());
    return Tensor{};
  });
  EXPECT_EQ(autograd::graph_task_id(), 0u);
  backward(sum(y));
  ASSERT_EQ(inside.size(), 1u);
  ASSERT_EQ(outside.size(), 1u);
  EXPECT_NE(inside[0], outside[0]);
  EXPECT_NE(inside[0], 0u);
  EXPECT_NE(outside[0], 0u);
  EXPECT_EQ(autograd::graph_task_id(), 0u);
}

TEST(BackwardFromSeveralResults, RunsWhatTheyShareOnce) {
  test::OneRank rank;
  const Tensor x = leaf({3});
  const Tensor h = ops::mul(x, x);
  int runs = 0;
  h.register_hook([&](const Tensor&) {
    ++runs;
    return Tensor{};
  });
  const std::vector<autograd::Root> roots{{ops::scale(h, 2), constant({1})}, {ops::scale(h, 5), constant({10})}};
  backward(roots);
  EXPECT_EQ(runs, 1);
  EXPECT_THAT(grad(x), ElementsAre((2 + 50) * 2 * 3));  // (2 * 1 + 5 * 10) * dh/dx
}

TEST(BackwardFromSeveralResults, OneMayLeadToAnother) {
  test::OneRank rank;
  const Tensor x = leaf({3});
  const Tensor h = ops::scale(x, 2);
  const std::vector<autograd::Root> roots{{h, constant({7})}, {ops::scale(h, 5), constant({1})}, {h, constant({100})}};
  backward(roots);
  EXPECT_THAT(grad(x), ElementsAre(2 * (7 + 5 + 100)));
}

TEST(BackwardFromSeveralResults, ALeafIsOneToo) {
  test::OneRank rank;
  const Tensor x = leaf({3});
  const std::vector<autograd::Root> roots{{x, constant({7})}, {ops::scale(x, 5), constant({1})}};
  backward(roots);
  EXPECT_THAT(grad(x), ElementsAre(12));
}

TEST(DeferredGraph, RecordsNothingAndExpectsBackward) {
  test::OneRank rank;
  EXPECT_TRUE(autograd::backward_expected());
  {
    const autograd::GradDeferred deferred;
    EXPECT_FALSE(ops::scale(leaf({1}), 2).requires_grad());
    EXPECT_TRUE(autograd::backward_expected());
    {
      const autograd::NoGrad no_grad;
      EXPECT_FALSE(autograd::backward_expected());
    }
    EXPECT_TRUE(autograd::backward_expected());
  }
  EXPECT_TRUE(autograd::grad_enabled());
  const autograd::NoGrad no_grad;
  EXPECT_FALSE(autograd::backward_expected());
  EXPECT_THAT(
      [] { const autograd::GradDeferred deferred; },
      ThrowsMessage<InvariantError>(StrEq("[rank 0] internal: a graph is deferred while the grad mode is off")));
}

TEST(BackwardCallbacks, RunAtTheEndInTheOrderTheyWereQueued) {
  test::OneRank rank;
  std::vector<std::string> order;
  const Tensor x = leaf({1});
  const Tensor y = ops::scale(x, 2);
  y.register_hook([&](const Tensor&) {
    autograd::queue_callback([&] {
      order.push_back("first");
      autograd::queue_callback([&] { order.push_back("queued by a callback"); });
    });
    autograd::queue_callback([&] { order.push_back("second"); });
    return Tensor{};
  });
  x.register_post_accumulate_hook([&](const Tensor&) { order.push_back("leaf"); });
  backward(sum(y));
  EXPECT_THAT(order, ElementsAre("leaf", "first", "second", "queued by a callback"));
}

TEST(BackwardCallbacks, OfANestedBackwardRunAtItsEnd) {
  test::OneRank rank;
  std::vector<std::string> order;
  const Tensor x = leaf({1});
  const auto block = [&](const Tensor& h) {
    const Tensor y = ops::scale(h, 2);
    if (y.requires_grad()) {
      y.register_hook([&](const Tensor&) {
        autograd::queue_callback([&] { order.push_back("nested"); });
        return Tensor{};
      });
    }
    return y;
  };
  const Tensor inner = ops::scale(x, 1);
  inner.register_hook([&](const Tensor&) {
    order.push_back("outer goes on");
    return Tensor{};
  });
  const Tensor y = recomputed(block, inner);
  y.register_hook([&](const Tensor&) {
    autograd::queue_callback([&] { order.push_back("outer"); });
    return Tensor{};
  });
  backward(sum(y));
  EXPECT_THAT(order, ElementsAre("nested", "outer goes on", "outer"));
}

TEST(BackwardCallbacks, CannotBeQueuedOutside) {
  test::OneRank rank;
  EXPECT_THAT([] { autograd::queue_callback([] {}); },
              ThrowsMessage<InvariantError>(StrEq("[rank 0] internal: a callback was queued outside backward")));
}

}  // namespace
}  // namespace loom
