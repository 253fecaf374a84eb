// Promise: what operators on several ranks give, and their gradients, are those of one rank that holds all parts.
// World:   1 to 4 ranks as threads, fp64. Every rank's loss is its own; the objective is their sum.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/tensor/ops/composed.h"
#include "tests/dist/dist_ranks.h"
#include "tests/dist/operator_cases.h"

namespace loom::dist {
namespace {

using testing::DoubleNear;
using testing::Pointwise;

class OperatorsOnRanks : public testing::TestWithParam<int> {};

TEST_P(OperatorsOnRanks, AreTheOperatorsOfOneRank) {
  const int ranks = GetParam();
  for (const Case& of : cases()) {
    std::vector<Outcome> actual(static_cast<std::size_t>(ranks));
    test::run_dist(ranks, [&](const Channel& channel, comm::World& world) {
      actual[static_cast<std::size_t>(world.rank())] = on_this_rank(of, channel);
    });
    const std::vector<Outcome> expected = on_one_rank(of, ranks);
    for (std::size_t r = 0; r < actual.size(); ++r) {
      EXPECT_LE(distance(actual[r], expected[r]), kTolerance) << of.name << ", rank " << r;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, OperatorsOnRanks, testing::Values(1, 2, 3, 4));

// x is alike on all ranks, and each one makes a loss of its own of it.
TEST(AGradientOfAllRanks, IsTheirSum) {
  const int ranks = 3;
  test::Doubles expected;
  {
    const test::OneRank rank;
    const Tensor x = input_of(0, {4, 2});
    autograd::backward(ops::add(ops::add(loss_of(x, 0), loss_of(x, 1)), loss_of(x, 2)));
    expected = test::grad(x);
  }
  std::vector<test::Doubles> actual(ranks);
  test::run_dist(ranks, [&](const Channel& channel, comm::World& world) {
    const Tensor x = input_of(0, {4, 2});
    autograd::backward(loss_of(with_summed_gradient(x, channel, "column"), world.rank()));
    actual[static_cast<std::size_t>(world.rank())] = test::grad(x);
  });
  for (const test::Doubles& gradient : actual) EXPECT_THAT(gradient, Pointwise(DoubleNear(kTolerance), expected));
}

// The two products of a layer that is split by columns, then by rows (spec: tensor parallelism), against the whole one.
TEST(ASplitLayer, HasTheGradientsOfTheWholeOne) {
  const int ranks = 2;
  const std::int64_t hidden = 4, wide = 6, part = wide / ranks;
  const test::Doubles up = test::normals(wide * hidden, 70), down = test::normals(hidden * wide, 71);
  const auto whole_loss = [&](const Tensor& x, const Tensor& up_weight, const Tensor& down_weight) {
    return loss_of(ops::linear(ops::silu(ops::linear(x, up_weight, {})), down_weight, {}), 0);
  };
  test::Doubles expected_x, expected_up;
  {
    const test::OneRank rank;
    const Tensor x = input_of(0, {3, hidden});
    const Tensor weight = test::leaf(up, {wide, hidden});
    autograd::backward(whole_loss(x, weight, test::constant(down, {hidden, wide})));
    expected_x = test::grad(x);
    expected_up = test::grad(weight);
  }
  test::run_dist(ranks, [&](const Channel& channel, comm::World& world) {
    const Tensor x = input_of(0, {3, hidden});
    const std::int64_t begin = world.rank() * part;
    const Tensor weight =
        test::leaf({up.begin() + begin * hidden, up.begin() + (begin + part) * hidden}, {part, hidden});
    test::Doubles down_part;
    for (std::int64_t row = 0; row < hidden; ++row) {
      for (std::int64_t i = begin; i < begin + part; ++i)
        down_part.push_back(down[static_cast<std::size_t>(row * wide + i)]);
    }
    const Tensor inner = ops::silu(ops::linear(with_summed_gradient(x, channel, "up"), weight, {}));
    const Tensor y = ops::linear(inner, test::constant(down_part, {hidden, part}), {});
    autograd::backward(loss_of(all_reduce(y, channel, "down", Loss::kOfAll), 0));
    EXPECT_THAT(test::grad(x), Pointwise(DoubleNear(kTolerance), expected_x)) << "rank " << world.rank();
    const test::Doubles own(expected_up.begin() + begin * hidden, expected_up.begin() + (begin + part) * hidden);
    EXPECT_THAT(test::grad(weight), Pointwise(DoubleNear(kTolerance), own)) << "rank " << world.rank();
  });
}

}  // namespace
}  // namespace loom::dist
