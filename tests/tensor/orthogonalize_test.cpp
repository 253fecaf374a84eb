// Promise: orthogonalized() is the Newton-Schulz iteration of Muon: its golden values, the transposed result for a
//          transposed input, singular values near 1, stacks matrix by matrix, the same bits with any number of threads.
#include "engine/tensor/ops/orthogonalize.h"

#include <cmath>
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/tensor/ops.h"
#include "tests/support/files.h"
#include "tests/tensor/tensors.h"

namespace loom::ops {
namespace {

using Numbers = std::vector<double>;

Tensor matrix(const Numbers& values, const Shape& shape, DType dtype) {
  return ops::cast(Tensor::from(std::span<const double>(values), shape), dtype);
}

// From -1 to 1, without a pattern: every singular value is well above rounding.
Numbers numbers(std::int64_t count) {
  Numbers values(static_cast<std::size_t>(count));
  std::uint32_t state = 7;
  for (double& value : values) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<double>(state >> 8U) / static_cast<double>(1U << 23U) - 1;
  }
  return values;
}

TEST(Orthogonalized, HasTheGoldenValues) {
  test::OneRank rank;
  const Tensor o = orthogonalized(matrix({1, 2, 3, 4, 5, 6}, {3, 2}, DType::kF64), newton_schulz(5));
  const Numbers expected{-0.467519, 0.573473, 0.072432, 0.409453, 0.612383, 0.245432};
  const Numbers values = o.to_vector<double>();
  for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(values[i], expected[i], 1e-6);
}

TEST(Orthogonalized, OfTheTransposedIsTheTransposed) {
  test::OneRank rank;
  const Numbers wide = numbers(3 * 8);
  Numbers tall(wide.size());
  for (std::size_t r = 0; r < 3; ++r) {
    for (std::size_t c = 0; c < 8; ++c) tall[c * 3 + r] = wide[r * 8 + c];
  }
  const Numbers a = orthogonalized(matrix(wide, {3, 8}, DType::kF64), newton_schulz(5)).to_vector<double>();
  const Numbers b = orthogonalized(matrix(tall, {8, 3}, DType::kF64), newton_schulz(5)).to_vector<double>();
  for (std::size_t r = 0; r < 3; ++r) {
    for (std::size_t c = 0; c < 8; ++c) EXPECT_NEAR(a[r * 8 + c], b[c * 3 + r], 1e-12);
  }
}

// Singular values from about 0.7 to 1.2; bf16 stays near fp64.
TEST(Orthogonalized, BringsSingularValuesNearOneInBothTypes) {
  test::OneRank rank;
  const Numbers values = numbers(6 * 40);
  const Numbers exact = orthogonalized(matrix(values, {6, 40}, DType::kF64), newton_schulz(5)).to_vector<double>();
  const Numbers rough = orthogonalized(matrix(values, {6, 40}, DType::kBF16), newton_schulz(5)).to_vector<double>();
  double squares = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    squares += exact[i] * exact[i];
    EXPECT_NEAR(rough[i], exact[i], 0.05);
  }
  EXPECT_GT(squares, 6 * 0.68 * 0.68);  // of the six singular values
  EXPECT_LT(squares, 6 * 1.2 * 1.2);
}

TEST(Orthogonalized, TakesStacksMatrixByMatrixAndZeros) {
  test::OneRank rank;
  Numbers stack = numbers(3 * 4 * 5);
  std::fill(stack.begin() + 20, stack.begin() + 40, 0.0);
  const Numbers all = orthogonalized(matrix(stack, {3, 4, 5}, DType::kBF16), newton_schulz(5)).to_vector<double>();
  for (std::size_t e : {0U, 2U}) {
    const Numbers one(stack.begin() + static_cast<std::ptrdiff_t>(e) * 20,
                      stack.begin() + static_cast<std::ptrdiff_t>(e + 1) * 20);
    const Numbers alone = orthogonalized(matrix(one, {4, 5}, DType::kBF16), newton_schulz(5)).to_vector<double>();
    EXPECT_EQ(Numbers(all.begin() + static_cast<std::ptrdiff_t>(e) * 20,
                      all.begin() + static_cast<std::ptrdiff_t>(e + 1) * 20),
              alone);
  }
  for (std::size_t i = 20; i < 40; ++i) EXPECT_EQ(all[i], 0);
}

TEST(Orthogonalized, RefusesWhatIsNoMatrix) {
  test::OneRank rank;
  EXPECT_EQ(test::message_of<ModelError>([] { orthogonalized(Tensor::zeros({4}, DType::kF32), newton_schulz(5)); }),
            "[rank 0] orthogonalized: fp32 [4]; a matrix, or a stack of matrices, in bf16, fp32 or fp64 is needed");
}

}  // namespace
}  // namespace loom::ops
