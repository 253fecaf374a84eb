// Promise: AdamW is torch.optim.AdamW, written out here in double.
#include "engine/nn/optim/adamw.h"

#include <cmath>
#include <gmock/gmock.h>

#include "engine/nn/optim/gradients.h"
#include "tests/tensor/tensors.h"

namespace loom::nn {
namespace {

using test::Doubles;
using test::leaf;

constexpr AdamWOptions kOptions{.lr = 0.05, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1};

struct Reference {
  Doubles w, m, v;
  int step = 0;

  explicit Reference(Doubles weights) : w(std::move(weights)), m(w.size(), 0.0), v(w.size(), 0.0) {}

  void update(const AdamWOptions& o, const Doubles& g) {
    ++step;
    const double bias1 = 1 - std::pow(o.beta1, step), bias2 = 1 - std::pow(o.beta2, step);
    for (std::size_t i = 0; i < w.size(); ++i) {
      w[i] *= 1 - o.lr * o.weight_decay;
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * g[i];
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * g[i] * g[i];
      w[i] -= o.lr / bias1 * m[i] / (std::sqrt(v[i]) / std::sqrt(bias2) + o.eps);
    }
  }
};

void expect_near(const Doubles& found, const Doubles& expected, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], tolerance) << i;
}

TEST(AdamW, FollowsTheDoubleReferenceOverSteps) {
  test::OneRank rank;
  for (DType dtype : {DType::kF64, DType::kF32}) {
    const Doubles start = test::normals(37, 1);
    const Tensor w = leaf(start, {37}, dtype);
    Reference reference(test::values(w));
    AdamW optimizer({w}, kOptions);
    for (std::uint64_t step = 0; step < 6; ++step) {
      const Tensor g = test::constant(test::normals(37, 10 + step), {37}, dtype);
      w.set_grad(g);
      optimizer.step();
      reference.update(kOptions, test::values(g));
    }
    expect_near(test::values(w), reference.w, dtype == DType::kF64 ? 1e-14 : 1e-6);
  }
}

TEST(AdamW, AParameterWithoutGradientIsSkippedAndKeepsItsStepCount) {
  test::OneRank rank;
  const Tensor often = leaf({1, 2}), seldom = leaf({3, 4});
  Reference often_reference({1, 2}), seldom_reference({3, 4});
  AdamW optimizer({often, seldom}, kOptions);
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    const Doubles g{0.5 + step, -1};
    often.set_grad(test::constant(g));
    often_reference.update(kOptions, g);
    if (step % 2 == 1) {
      seldom.set_grad(test::constant(g));
      seldom_reference.update(kOptions, g);
    }
    optimizer.step();
  }
  expect_near(test::values(often), often_reference.w, 1e-14);
  expect_near(test::values(seldom), seldom_reference.w, 1e-14);
  EXPECT_EQ(seldom_reference.step, 2);
}

TEST(AdamW, TheLearningRateMayChangeBetweenSteps) {
  test::OneRank rank;
  const Tensor w = leaf({1, 2});
  Reference reference({1, 2});
  AdamW optimizer({w}, kOptions);
  AdamWOptions options = kOptions;
  for (double lr : {0.1, 0.01, 0.0}) {
    options.lr = lr;
    optimizer.set_lr(lr);
    w.set_grad(test::constant({1, -2}));
    optimizer.step();
    reference.update(options, {1, -2});
  }
  expect_near(test::values(w), reference.w, 1e-14);
}

TEST(AdamW, EmptyShardsTakePartAndDoNothing) {
  test::OneRank rank;
  const Tensor w = leaf({}, {0, 4});
  AdamW optimizer({w}, kOptions);
  w.set_grad(Tensor::zeros({0, 4}, DType::kF64));
  EXPECT_NO_THROW(optimizer.step());
}

TEST(AdamW, KeepsTwoMomentsFromTheFirstStepWithAGradientOn) {
  test::OneRank rank;
  const Tensor used = leaf(test::normals(1000, 1), {1000}, DType::kF32), unused = leaf({1});
  AdamW optimizer({used, unused}, kOptions);
  const auto state_bytes = [&] { return rank.stats().by_category[device::MemCategory::kOptimizerState]; };
  EXPECT_EQ(state_bytes(), 0);
  used.set_grad(Tensor::full({1000}, DType::kF32, 1));
  optimizer.step();
  EXPECT_EQ(state_bytes(), 2 * 4096);  // 4000 bytes each, rounded to 512
}

TEST(AdamW, LeavesFrozenParametersOut) {
  test::OneRank rank;
  const AdamW optimizer({leaf({1}), test::constant({2})}, kOptions);
  EXPECT_EQ(optimizer.parameters().size(), 1u);
}

TEST(AdamW, AnUpdateCountsAsAWrite) {
  test::OneRank rank;
  const Tensor w = leaf({1});
  const std::uint64_t version = w.storage()->version();
  AdamW optimizer({w}, kOptions);
  optimizer.step();
  EXPECT_EQ(w.storage()->version(), version);
  w.set_grad(test::constant({1}));
  optimizer.step();
  EXPECT_EQ(w.storage()->version(), version + 1);
}

TEST(GradientNorm, IsTheSumOfSquaresOfWhatIsThere) {
  test::OneRank rank;
  const Tensor a = leaf({0, 0}), b = leaf({0}), none = leaf({0});
  a.set_grad(test::constant({3, 4}));
  b.set_grad(test::constant({12}));
  EXPECT_EQ(gradient_sum_of_squares({a, none, b}), 9 + 16 + 144);
  scale_gradients({a, none, b}, 0.5);
  EXPECT_EQ(gradient_sum_of_squares({a, none, b}), (9 + 16 + 144) / 4.0);
}

}  // namespace
}  // namespace loom::nn
