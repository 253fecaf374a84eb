// Promise: gemm equals a product in double for every dtype, transposition, bias and accumulation, at any size; its bits
//          do not depend on the number of threads; added to another tensor it has the bits of two steps.
// World:   no ranks, or one rank with a pool of 1 to 3 threads; numbers in [-1, 1).

#include "engine/kernels/gemm.h"

#include <cmath>
#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/core/rank_context.h"
#include "engine/kernels/fused.h"
#include "tests/kernels/products/gemm_reference.h"
#include "tests/support/typed_array.h"

namespace loom::kernels {
namespace {

using test::TypedArray;

struct Case {
  Gemm op;
  bool bias = false;
};

std::string describe(const Case& c) {
  return fmt::format("m={} n={} k={} ta={} tb={} {}->{} accumulate={} bias={}", c.op.m, c.op.n, c.op.k,
                     c.op.transpose_a, c.op.transpose_b, name(c.op.ab), name(c.op.c), c.op.accumulate, c.bias);
}

struct Operands {
  TypedArray a, b, bias, c;
};

Operands operands(const Case& t) {
  return {TypedArray::random(t.op.ab, t.op.m * t.op.k, 1), TypedArray::random(t.op.ab, t.op.k * t.op.n, 2),
          TypedArray::random(t.op.ab, t.op.n, 3), TypedArray::random(t.op.c, t.op.m * t.op.n, 4)};
}

// Products are exact in the accumulator's type, so what is lost is one rounding to C and a sum of k terms of size <= 1.
double allowed(const Gemm& op, double expected) {
  const double unit = op.c == DType::kBF16  ? 0x1p-8
                      : op.c == DType::kF16 ? 0x1p-11
                      : op.c == DType::kF32 ? 0x1p-24
                                            : 0x1p-53;
  const double sum_unit = op.ab == DType::kF64 ? 0x1p-53 : 0x1p-24;
  return unit * std::abs(expected) * 1.01 + sum_unit * 8 * std::sqrt(static_cast<double>(op.k) + 1) +
         1e-7 * (op.c == DType::kF16);
}

TypedArray product(const Case& t, Operands x) {
  Gemm op = t.op;
  op.bias = t.bias ? x.bias.data() : nullptr;
  gemm(op, x.a.data(), x.b.data(), x.c.data());
  return x.c;
}

void expect_equal_to_double(const Case& t) {
  const Operands x = operands(t);
  const std::vector<double> c = product(t, x).doubles();
  const test::GemmReference reference(x.a, x.b, x.bias, x.c);
  int shown = 0;
  for (std::int64_t row = 0; row < t.op.m; ++row) {
    for (std::int64_t column = 0; column < t.op.n; ++column) {
      const double expected = reference.at(t.op, t.bias, row, column);
      const double error = std::abs(c[static_cast<std::size_t>(row * t.op.n + column)] - expected);
      if (!(error <= allowed(t.op, expected)) && shown++ < 3) {
        ADD_FAILURE() << describe(t) << " at [" << row << ", " << column << "]: error " << error << " of " << expected;
      }
    }
  }
}

struct Types {
  DType ab, c;
};
constexpr Types kTypes[] = {{DType::kF32, DType::kF32}, {DType::kBF16, DType::kBF16}, {DType::kBF16, DType::kF32},
                            {DType::kF16, DType::kF16}, {DType::kF16, DType::kF32},   {DType::kF64, DType::kF64}};

Case make(std::int64_t m, std::int64_t n, std::int64_t k, Types types) {
  Case t;
  t.op.m = m;
  t.op.n = n;
  t.op.k = k;
  t.op.ab = types.ab;
  t.op.c = types.c;
  return t;
}

void for_each_form(Case t, const std::function<void(const Case&)>& check) {
  for (int form = 0; form < 4; ++form) {
    t.op.transpose_a = (form & 1) != 0;
    t.op.transpose_b = (form & 2) != 0;
    for (int extra = 0; extra < 3; ++extra) {
      t.bias = extra == 1;
      t.op.accumulate = extra == 2;
      check(t);
    }
  }
}

TEST(Gemm, EqualsTheProductInDoubleForEveryTypeAndForm) {
  for (const Types types : kTypes) for_each_form(make(37, 53, 41, types), expect_equal_to_double);
}

TEST(Gemm, EqualsTheProductInDoubleWhereItIsCutIntoTiles) {
  for (const Types types : kTypes) for_each_form(make(777, 70, 11, types), expect_equal_to_double);
  for (const Types types : kTypes) for_each_form(make(100, 1031, 11, types), expect_equal_to_double);
}

TEST(Gemm, EqualsTheProductInDoubleAtSizesOfOne) {
  for (const Types types : kTypes) {
    for_each_form(make(1, 1, 1, types), expect_equal_to_double);
    for_each_form(make(1, 257, 33, types), expect_equal_to_double);
    for_each_form(make(257, 1, 33, types), expect_equal_to_double);
    for_each_form(make(129, 65, 1, types), expect_equal_to_double);
  }
}

TEST(Gemm, TakesEmptySizes) {
  for (const Types types : kTypes) {
    for_each_form(make(0, 5, 7, types), expect_equal_to_double);
    for_each_form(make(5, 0, 7, types), expect_equal_to_double);
    for_each_form(make(5, 7, 0, types), expect_equal_to_double);  // zeros, the bias, or C as it was
  }
}

TEST(Gemm, DoesNotReadCUnlessItAccumulates) {
  for (const Types types : kTypes) {
    const Case t = make(130, 70, 20, types);
    Operands x = operands(t);
    const TypedArray clean = product(t, x);
    x.c = TypedArray::filled(types.c, t.op.m * t.op.n, std::nan(""));
    EXPECT_TRUE(product(t, x) == clean) << describe(t);
  }
}

// Both in one kernel give the bits of one behind the other.
void expect_sum_as_of_two_steps(Case t) {
  if (t.op.accumulate) return;
  const Operands x = operands(t);
  const TypedArray alone = product(t, x), before = TypedArray::random(t.op.c, t.op.m * t.op.n, 5);
  TypedArray expected = before, sum = before;
  add(t.op.c, t.op.m * t.op.n, before.data(), alone.data(), expected.data());
  t.op.add_to = sum.data();
  product(t, x);
  EXPECT_TRUE(sum == expected) << describe(t);
}

TEST(Gemm, AddsToAnotherTensorWithTheBitsOfAProductAndAnAddition) {
  for (const Types types : kTypes) {
    for_each_form(make(37, 53, 41, types), expect_sum_as_of_two_steps);
    for_each_form(make(48, 96, 1300, types), expect_sum_as_of_two_steps);  // several blocks of K
    for_each_form(make(16, 600, 70, types), expect_sum_as_of_two_steps);   // a few rows
    for_each_form(make(5, 7, 0, types), expect_sum_as_of_two_steps);
    test::WithThreads pool(2);
    for_each_form(make(300, 200, 70, types), expect_sum_as_of_two_steps);
  }
}

TEST(Gemm, GivesTheSameBitsOnAnyNumberOfThreads) {
  for (const Types types : kTypes) {
    for_each_form(make(1100, 600, 70, types), [](const Case& t) {
      const Operands x = operands(t);
      const TypedArray alone = product(t, x);
      for (const int threads : test::thread_counts()) {
        test::WithThreads pool(threads);
        EXPECT_TRUE(product(t, x) == alone) << describe(t) << " threads=" << threads;
      }
    });
  }
}

TEST(Gemm, LetsNaNAndInfinityThrough) {
  Case t = make(130, 64, 32, {DType::kF32, DType::kF32});
  Operands x = operands(t);
  x.a.set(3 * 32 + 5, std::nan(""));
  x.a.set(7 * 32 + 5, HUGE_VAL);
  const TypedArray c = product(t, x);
  EXPECT_TRUE(std::isnan(c.get(3 * 64 + 11)));
  EXPECT_TRUE(std::isinf(c.get(7 * 64 + 11)));
  EXPECT_TRUE(std::isfinite(c.get(4 * 64 + 11)));
}

TEST(GemmBatched, EqualsOneProductAfterAnother) {
  for (const Types types : kTypes) {
    const Case t = make(33, 17, 20, types);
    const std::int64_t batch = 5;
    const BatchStride stride{33 * 20 + 3, 0, 33 * 17};  // gaps in A; one B for all
    const TypedArray a = TypedArray::random(types.ab, batch * stride.a, 5);
    const TypedArray b = TypedArray::random(types.ab, 20 * 17, 6);
    TypedArray together = TypedArray::filled(types.c, batch * stride.c, 0), alone = together;
    test::WithThreads pool(test::thread_counts().back());
    gemm_batched(t.op, batch, stride, a.data(), b.data(), together.data());
    for (std::int64_t i = 0; i < batch; ++i) gemm(t.op, a.at(i * stride.a), b.data(), alone.at(i * stride.c));
    EXPECT_TRUE(together == alone) << describe(t);
  }
}

TEST(Gemm, NamesWhatItWasLinkedWith) {
  EXPECT_THAT(
      std::string(gemm_backend()),
      testing::MatchesRegex(
          "(oneDNN|Eigen) [0-9]+\\.[0-9]+\\.[0-9]+|own (AVX2|AVX-512|AVX-512 bf16|AMX bf16|.Eigen on this processor.)"));
}

TEST(Gemm, RefusesTypesAndSizesOutsideTheContract) {
  const auto message = [](const Gemm& op) -> std::string {
    try {
      gemm(op, nullptr, nullptr, nullptr);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message(make(1, 1, 1, {DType::kF32, DType::kBF16}).op), "internal: gemm of fp32 writes fp32, not bf16");
  EXPECT_EQ(message(make(1, 1, 1, {DType::kBF16, DType::kF16}).op),
            "internal: gemm of bf16 writes bf16 or fp32, not fp16");
  EXPECT_EQ(message(make(1, 1, 1, {DType::kI8, DType::kI8}).op),
            "gemm takes fp32, bf16, fp16 or fp64, got int8; cast it");
  EXPECT_EQ(message(make(-1, 1, 1, {DType::kF32, DType::kF32}).op),
            "internal: gemm sizes must not be negative, got m=-1 n=1 k=1");
}

}  // namespace
}  // namespace loom::kernels
