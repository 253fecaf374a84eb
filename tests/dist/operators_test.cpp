// Promise: what operators on several ranks give, and their gradients, are those of one rank that holds all parts.
// World:   1 to 4 ranks as threads, fp64. Every rank's loss is its own; the objective is their sum.

#include "engine/dist/operators.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>

#include "engine/tensor/ops/general.h"
#include "tests/dist/dist_ranks.h"
#include "tests/tensor/tensors.h"

namespace loom::dist {
namespace {

using testing::DoubleNear;
using testing::Pointwise;

constexpr double kTolerance = 1e-12;

struct Outcome {
  test::Doubles values;
  test::Doubles gradient;
};

// The loss of a rank: no gradient of it is a constant.
Tensor loss_of(const Tensor& y, int rank) {
  const Tensor weights = test::constant(test::normals(y.numel(), 1000 + static_cast<std::uint64_t>(rank)), y.shape());
  return test::sum(ops::mul(ops::mul(y, y), weights));
}

Tensor input_of(int rank, const Shape& shape) {
  return test::leaf(test::normals(shape.numel(), static_cast<std::uint64_t>(rank)), shape);
}

struct Case {
  std::string name;
  std::function<Shape(int rank, int ranks)> shape;
  // On a rank.
  std::function<Tensor(const Tensor& x, const Channel& channel)> part;
  // The results of all ranks from the inputs of all.
  std::function<std::vector<Tensor>(const std::vector<Tensor>& x)> whole;
  bool one_loss = false;  // all ranks compute the loss of rank 0
};

std::vector<Outcome> on_ranks(const Case& of, int ranks) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks));
  test::run_dist(ranks, [&](const Channel& channel, comm::World& world) {
    const Tensor x = input_of(world.rank(), of.shape(world.rank(), ranks));
    const Tensor y = of.part(x, channel);
    autograd::backward(loss_of(y, of.one_loss ? 0 : world.rank()));
    outcomes[static_cast<std::size_t>(world.rank())] = {test::values(y), test::grad(x)};
  });
  return outcomes;
}

std::vector<Outcome> on_one_rank(const Case& of, int ranks) {
  const test::OneRank rank;
  std::vector<Tensor> x;
  for (int r = 0; r < ranks; ++r) x.push_back(input_of(r, of.shape(r, ranks)));
  const std::vector<Tensor> y = of.whole(x);
  Tensor loss = loss_of(y[0], 0);
  for (int r = 1; r < ranks && !of.one_loss; ++r) loss = ops::add(loss, loss_of(y[static_cast<std::size_t>(r)], r));
  autograd::backward(loss);
  std::vector<Outcome> outcomes;
  for (std::size_t r = 0; r < x.size(); ++r) outcomes.push_back({test::values(y[r]), test::grad(x[r])});
  return outcomes;
}

Tensor sum_of(const std::vector<Tensor>& x) {
  Tensor sum = x[0];
  for (std::size_t r = 1; r < x.size(); ++r) sum = ops::add(sum, x[r]);
  return sum;
}

// Rows that rank `from` sends to rank `to`: none from rank 1 to anyone, several and different ones between others.
std::int64_t rows_between(int from, int to) { return from == 1 ? 0 : (2 * from + 3 * to + 1) % 5; }

std::vector<std::int64_t> counts(int ranks, const std::function<std::int64_t(int)>& of_rank) {
  std::vector<std::int64_t> all;
  for (int r = 0; r < ranks; ++r) all.push_back(of_rank(r));
  return all;
}

std::vector<std::int64_t> sent_by(int rank, int ranks) {
  return counts(ranks, [&](int to) { return rows_between(rank, to); });
}

RowCounts rows_of(int rank, int ranks) {
  return {sent_by(rank, ranks), counts(ranks, [&](int from) { return rows_between(from, rank); })};
}

// What each rank gets where x of every rank is cut along `cut` into parts of the given sizes, and joined along `join`.
std::vector<Tensor> exchanged(const std::vector<Tensor>& x, int cut, int join,
                              const std::function<std::vector<std::int64_t>(int rank)>& sizes) {
  std::vector<std::vector<Tensor>> received(x.size());
  for (std::size_t r = 0; r < x.size(); ++r) {
    const std::vector<Tensor> parts = ops::split(x[r], sizes(static_cast<int>(r)), cut);
    for (std::size_t to = 0; to < x.size(); ++to) received[to].push_back(parts[to]);
  }
  std::vector<Tensor> y;
  for (const std::vector<Tensor>& parts : received) y.push_back(ops::concat(parts, join));
  return y;
}

std::vector<std::int64_t> equal_sizes(const Tensor& x, int dim, std::size_t ranks) {
  return std::vector<std::int64_t>(ranks, x.shape()[dim] / static_cast<std::int64_t>(ranks));
}

Case exchange(int cut, int join) {
  return {"exchange_dims_" + std::to_string(cut) + "_" + std::to_string(join),
          [](int, int ranks) {
            return Shape{2 * ranks, ranks, 3 * ranks, 2};
          },
          [=](const Tensor& x, const Channel& channel) { return exchange_dims(x, cut, join, channel, "q"); },
          [=](const std::vector<Tensor>& x) {
            return exchanged(x, cut, join, [&](int) { return equal_sizes(x[0], cut, x.size()); });
          }};
}

Case gather(int dim, Loss loss) {
  return {"all_gather_" + std::to_string(dim) + (loss == Loss::kOfAll ? "_of_one_loss" : ""),
          [](int, int) {
            return Shape{3, 2, 5};
          },
          [=](const Tensor& x, const Channel& channel) { return all_gather(x, dim, channel, "kv", loss); },
          [=](const std::vector<Tensor>& x) { return std::vector<Tensor>(x.size(), ops::concat(x, dim)); },
          loss == Loss::kOfAll};
}

Case scatter(int dim) {
  return {"reduce_scatter_" + std::to_string(dim),
          [](int, int ranks) {
            return Shape{ranks, 2 * ranks, 3 * ranks};
          },
          [=](const Tensor& x, const Channel& channel) { return reduce_scatter(x, dim, channel, "o"); },
          [=](const std::vector<Tensor>& x) { return ops::split(sum_of(x), equal_sizes(x[0], dim, x.size()), dim); }};
}

Case reduce(Loss loss) {
  return {std::string("all_reduce") + (loss == Loss::kOfAll ? "_of_one_loss" : ""),
          [](int, int) {
            return Shape{3, 7};
          },
          [=](const Tensor& x, const Channel& channel) { return all_reduce(x, channel, "o", loss); },
          [](const std::vector<Tensor>& x) { return std::vector<Tensor>(x.size(), sum_of(x)); }, loss == Loss::kOfAll};
}

Case ring(int distance) {
  return {"shift_" + std::string(distance < 0 ? "back_" : "") + std::to_string(std::abs(distance)),
          [](int, int) {
            return Shape{3, 2};
          },
          [=](const Tensor& x, const Channel& channel) { return shift(x, distance, channel, "kv 0"); },
          [=](const std::vector<Tensor>& x) {
            const auto ranks = static_cast<int>(x.size());
            std::vector<Tensor> y;
            for (int r = 0; r < ranks; ++r) {
              y.push_back(ops::reshape(x[static_cast<std::size_t>(((r - distance) % ranks + ranks) % ranks)], {3, 2}));
            }
            return y;
          }};
}

std::vector<Case> cases() {
  std::vector<Case> all{{"all_to_all",
                         [](int rank, int ranks) {
                           std::int64_t rows = 0;
                           for (const std::int64_t count : sent_by(rank, ranks)) rows += count;
                           return Shape{rows, 3};
                         },
                         [](const Tensor& x, const Channel& channel) {
                           return all_to_all(x, rows_of(channel.rank(), channel.size()), channel, "experts");
                         },
                         [](const std::vector<Tensor>& x) {
                           const auto ranks = static_cast<int>(x.size());
                           return exchanged(x, 0, 0, [=](int rank) { return sent_by(rank, ranks); });
                         }}};
  for (const auto& [cut, join] : {std::pair{0, 0}, {0, 2}, {1, 2}, {2, 1}, {2, 0}}) all.push_back(exchange(cut, join));
  for (const Loss loss : {Loss::kOfEachRank, Loss::kOfAll}) {
    for (const int dim : {0, 1, -1}) all.push_back(gather(dim, loss));
    all.push_back(reduce(loss));
  }
  for (const int dim : {0, 1, 2}) all.push_back(scatter(dim));
  for (const int distance : {1, -1, 2, 4}) all.push_back(ring(distance));
  return all;
}

class OperatorsOnRanks : public testing::TestWithParam<int> {};

TEST_P(OperatorsOnRanks, AreTheOperatorsOfOneRank) {
  const int ranks = GetParam();
  for (const Case& of : cases()) {
    const std::vector<Outcome> actual = on_ranks(of, ranks), expected = on_one_rank(of, ranks);
    for (std::size_t r = 0; r < actual.size(); ++r) {
      EXPECT_THAT(actual[r].values, Pointwise(DoubleNear(kTolerance), expected[r].values)) << of.name << ", rank " << r;
      EXPECT_THAT(actual[r].gradient, Pointwise(DoubleNear(kTolerance), expected[r].gradient))
          << of.name << ", rank " << r;
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
