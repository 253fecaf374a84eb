// Promise: adamw() makes the steps of torch.optim.AdamW.
#include <gtest/gtest.h>
#include <limits>

#include "engine/kernels/fused.h"
#include "tests/kernels/fused_support.h"

namespace loom::kernels::testing {
namespace {

struct State {
  Doubles weight, m, v;
};

void reference_step(const AdamW& op, const Doubles& grad, State& s) {
  const double bias1 = 1 - std::pow(op.beta1, static_cast<double>(op.step));
  const double bias2 = 1 - std::pow(op.beta2, static_cast<double>(op.step));
  for (std::size_t i = 0; i < grad.size(); ++i) {
    const double g = grad[i] * op.grad_scale;
    s.weight[i] *= 1 - op.lr * op.weight_decay;
    s.m[i] += (g - s.m[i]) * (1 - op.beta1);
    s.v[i] = op.beta2 * s.v[i] + (1 - op.beta2) * g * g;
    s.weight[i] -= op.lr / bias1 * s.m[i] / (std::sqrt(s.v[i]) / std::sqrt(bias2) + op.eps);
  }
}

void expect_steps(AdamW op, DType dtype, DType grad_dtype, std::int64_t elems) {
  op.dtype = dtype;
  op.grad_dtype = grad_dtype;
  op.elems = elems;
  const auto size = static_cast<std::size_t>(elems);
  Buffer weight = normal_buffer(dtype, elems, 1);
  Buffer m(dtype, size), v(dtype, size);
  State want{weight.values(), Doubles(size), Doubles(size)};
  for (op.step = 1; op.step <= 5; ++op.step) {
    const Buffer grad = normal_buffer(grad_dtype, elems, static_cast<std::uint64_t>(10 + op.step));
    adamw(op, weight.data(), grad.data(), m.data(), v.data());
    reference_step(op, grad.values(), want);
  }
  expect_close(dtype, m.values(), want.m, 20);
  expect_close(dtype, v.values(), want.v, 20);
  expect_close(dtype, weight.values(), want.weight, 60);
}

// Each step from the rounded numbers of the one before.
void expect_bf16_steps(AdamW op) {
  const auto size = static_cast<std::size_t>(op.elems);
  Buffer weight = normal_buffer(DType::kBF16, op.elems, 1), m(DType::kBF16, size), v(DType::kBF16, size);
  for (op.step = 1; op.step <= 3; ++op.step) {
    const Buffer grad = normal_buffer(DType::kBF16, op.elems, static_cast<std::uint64_t>(10 + op.step));
    State want{weight.values(), m.values(), v.values()};
    reference_step(op, grad.values(), want);
    adamw(op, weight.data(), grad.data(), m.data(), v.data());
    expect_close(DType::kBF16, m.values(), want.m, 4);
    expect_close(DType::kBF16, v.values(), want.v, 4);
    expect_close(DType::kBF16, weight.values(), want.weight, 4);
  }
}

TEST(AdamW, MakesTheStepsOfItsDefinition) {
  AdamW op;
  op.lr = 0.01;
  op.weight_decay = 0.1;
  op.grad_scale = 0.37;
  for (DType dtype : {DType::kF32, DType::kF64}) {
    for (DType grad_dtype : kFloats) {
      if (dtype == DType::kF32 && grad_dtype == DType::kF64) continue;  // the gradient is rounded to fp32: next test
      for (std::int64_t elems : {0, 1, 16, 37, 65536 + 9}) expect_steps(op, dtype, grad_dtype, elems);
    }
  }
}

TEST(AdamW, RoundsAnFp64GradientToFp32) {
  const Doubles exact = normals(40, 3);
  const std::vector<float> rounded(exact.begin(), exact.end());
  std::vector<float> a(40, 1), am(40), av(40), b = a, bm = am, bv = av;
  adamw({.grad_dtype = DType::kF64, .elems = 40}, a.data(), exact.data(), am.data(), av.data());
  adamw({.elems = 40}, b.data(), rounded.data(), bm.data(), bv.data());
  EXPECT_EQ(a, b);
  EXPECT_EQ(av, bv);
}

TEST(AdamW, HoldsForASmallBeta1Too) {  // torch.lerp then starts from the gradient
  AdamW op;
  op.beta1 = 0.2;
  expect_steps(op, DType::kF32, DType::kF32, 100);
  op.beta1 = 0;
  expect_steps(op, DType::kF64, DType::kF64, 100);
}

TEST(AdamW, FirstStepMovesByTheLearningRate) {  // m / bias1 = g, sqrt(v / bias2) = |g|: the step is lr * sign(g)
  AdamW op{.dtype = DType::kF64, .grad_dtype = DType::kF64, .elems = 2};
  op.lr = 0.125;
  op.weight_decay = 0;
  op.eps = 0;
  Doubles weight{1, 1}, m(2), v(2);
  const Doubles grad{3, -0.5};
  adamw(op, weight.data(), grad.data(), m.data(), v.data());
  EXPECT_NEAR(weight[0], 1 - 0.125, 1e-15);
  EXPECT_NEAR(weight[1], 1 + 0.125, 1e-15);
}

TEST(AdamW, ANaNGradientSpoilsItsOwnWeightOnly) {
  std::vector<float> weight(40, 1), m(40), v(40), grad(40, 1);
  grad[21] = std::numeric_limits<float>::quiet_NaN();
  adamw({.elems = 40}, weight.data(), grad.data(), m.data(), v.data());
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(std::isnan(weight[i]), i == 21);
}

// The bits are PyTorch's (tests/train/optimizer_steps_test.cpp).
TEST(AdamW, ComputesABf16StepInFp32AndRoundsItOnce) {
  AdamW op{.dtype = DType::kBF16, .grad_dtype = DType::kBF16, .lr = 0.01, .weight_decay = 0.1};
  for (const double beta1 : {0.9, 0.2}) {
    op.beta1 = beta1;
    for (op.elems = 0; op.elems < 200; op.elems = 3 * op.elems + 5) expect_bf16_steps(op);
    op.elems = 65536 + 9;
    expect_bf16_steps(op);
  }
}

TEST(AdamW, RefusesFp16StateAndStepZero) {
  AdamW op;
  const auto run = [&](DType dtype) {
    op.dtype = dtype;
    adamw(op, nullptr, nullptr, nullptr, nullptr);
  };
  EXPECT_EQ(error_text<InvariantError>([&] { run(DType::kF16); }),
            "internal: adamw keeps its state in fp32, fp64 or bf16, got fp16");
  op.step = 0;
  EXPECT_EQ(error_text<InvariantError>([&] { run(DType::kF32); }), "internal: adamw counts steps from 1, got 0");
}

}  // namespace
}  // namespace loom::kernels::testing
