// Promise: in 16 bits the composed grain rounds where eager PyTorch does, between the pieces.
#include <cmath>
#include <gmock/gmock.h>

#include "tests/tensor/tensors.h"

namespace loom {
namespace {

using test::constant;
using test::Doubles;
using ::testing::Each;
using ::testing::ElementsAreArray;

double rounded(double value) { return static_cast<float>(bf16(static_cast<float>(value))); }

Doubles rounded(Doubles values) {
  for (double& v : values) v = rounded(v);
  return values;
}

const Doubles kX = rounded(test::normals(24, 1));
const Doubles kY = rounded(test::normals(24, 2));

Tensor half(const Doubles& values, const Shape& shape) { return constant(values, shape, DType::kBF16); }

TEST(ComposedRounding, SiluAndTheProductRoundApart) {
  test::OneRank rank;
  Doubles expected;
  for (std::size_t i = 0; i < kX.size(); ++i)
    expected.push_back(rounded(rounded(kX[i] / (1 + std::exp(-kX[i]))) * kY[i]));
  EXPECT_THAT(test::values(ops::composed::swiglu(half(kX, {24}), half(kY, {24}))), ElementsAreArray(expected));
}

TEST(ComposedRounding, RmsNormRoundsBeforeTheWeight) {
  test::OneRank rank;
  Doubles expected;
  for (std::size_t row = 0; row < 3; ++row) {
    double squares = 0;
    for (std::size_t i = 0; i < 8; ++i) squares += kX[row * 8 + i] * kX[row * 8 + i];
    const double factor = 1 / std::sqrt(squares / 8 + 1e-6);
    for (std::size_t i = 0; i < 8; ++i) expected.push_back(rounded(rounded(kX[row * 8 + i] * factor) * kY[i]));
  }
  const Tensor weight = half(Doubles(kY.begin(), kY.begin() + 8), {8});
  EXPECT_THAT(test::values(ops::composed::rms_norm(half(kX, {3, 8}), weight, 1e-6)), ElementsAreArray(expected));
}

TEST(ComposedRounding, RopeMultipliesAndAddsInTheTensorsDtype) {
  test::OneRank rank;
  const Doubles cos{0.3, -0.7, 0.3, -0.7}, sin{0.9, 0.4, 0.9, 0.4};  // fp32 tables are rounded to bf16 first
  const Doubles x{kX[0], kX[1], kX[2], kX[3]}, turned{-kX[2], -kX[3], kX[0], kX[1]};
  Doubles expected;
  for (std::size_t i = 0; i < 4; ++i) {
    expected.push_back(rounded(rounded(x[i] * rounded(cos[i])) + rounded(turned[i] * rounded(sin[i]))));
  }
  const Tensor y = ops::composed::rope(half(x, {1, 1, 1, 4}), constant(cos, {1, 4}, DType::kF32),
                                       constant(sin, {1, 4}, DType::kF32));
  EXPECT_THAT(test::values(y), ElementsAreArray(expected));
}

TEST(ComposedRounding, SoftmaxRoundsItsFp32ResultOnce) {
  test::OneRank rank;
  double sum = 0;
  for (std::size_t i = 0; i < 8; ++i) sum += std::exp(kX[i]);
  Doubles expected;
  for (std::size_t i = 0; i < 8; ++i) expected.push_back(rounded(std::exp(kX[i]) / sum));
  EXPECT_THAT(test::values(ops::softmax(half(Doubles(kX.begin(), kX.begin() + 8), {8}))), ElementsAreArray(expected));
}

TEST(ComposedRounding, TheGradientOfAnEmbeddingRoundsAfterEachRow) {
  test::OneRank rank;
  const Tensor ids = test::ids({0, 0, 0});
  const Doubles rows{1.0, 0x1p-8, 0x1p-8};  // half a unit of 1, which ties to 1; together they are a whole one
  const auto sum = [&](auto&& embedding) {
    const Tensor table = test::leaf({0}, {1, 1}, DType::kBF16);
    autograd::backward(embedding(ids, table), half(rows, {3, 1}));
    return test::grad(table).front();
  };
  EXPECT_EQ(sum([](const Tensor& i, const Tensor& t) { return ops::composed::embedding(i, t); }), 1.0);
  EXPECT_EQ(sum([](const Tensor& i, const Tensor& t) { return ops::embedding(i, t); }), 1.0 + 0x1p-7);
}

TEST(ComposedRounding, GeluRoundsAfterEachOfItsPieces) {
  test::OneRank rank;
  Doubles expected;
  for (const double x : kX) {
    const double cube = rounded(rounded(x * x) * x);
    const double inner = rounded(0.7978845608 * rounded(x + rounded(0.044715 * cube)));
    expected.push_back(rounded(rounded(0.5 * x) * rounded(1 + rounded(std::tanh(inner)))));
  }
  EXPECT_THAT(test::values(ops::composed::gelu(half(kX, {24}), ops::Gelu::kTanh)), ElementsAreArray(expected));
}

TEST(ComposedRounding, LayerNormKeepsItsStatisticsInTheInputsDtypeForBackward) {
  test::OneRank rank;
  const Doubles ones(8, 1.0);
  const auto slope = [&](auto&& norm) {
    const Tensor x = test::leaf(Doubles(kX.begin(), kX.begin() + 8), {1, 8}, DType::kBF16);
    autograd::backward(norm(x, half(ones, {8}), half(Doubles(8), {8})),
                       half(Doubles(kY.begin(), kY.begin() + 8), {1, 8}));
    return test::grad(x);
  };
  double mean = 0, squares = 0, products = 0, sum = 0;
  for (std::size_t i = 0; i < 8; ++i) mean += kX[i] / 8;
  for (std::size_t i = 0; i < 8; ++i) squares += (kX[i] - mean) * (kX[i] - mean) / 8;
  const double m = rounded(mean), r = rounded(1 / std::sqrt(squares + 1e-5));
  for (std::size_t i = 0; i < 8; ++i) sum += kY[i] / 8, products += kY[i] * (kX[i] - m) * r / 8;
  Doubles expected;
  for (std::size_t i = 0; i < 8; ++i) expected.push_back(rounded(r * (kY[i] - sum - (kX[i] - m) * r * products)));
  const auto composed = [](const Tensor& x, const Tensor& w, const Tensor& b) {
    return ops::composed::layer_norm(x, w, b, 1e-5);
  };
  const auto fused = [](const Tensor& x, const Tensor& w, const Tensor& b) { return ops::layer_norm(x, w, b, 1e-5); };
  EXPECT_THAT(slope(composed), ElementsAreArray(expected));
  EXPECT_NE(slope(fused), expected);
}

TEST(CausalMask, LeavesExactlyNothingAboveTheDiagonal) {
  test::OneRank rank;
  for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
    const Tensor weights = ops::softmax(ops::causal_mask(Tensor::zeros({2, 3, 3}, dtype)));
    const Doubles found = test::values(weights);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const std::size_t row = i / 3 % 3, column = i % 3;
      const double expected = column > row ? 0 : 1.0 / static_cast<double>(row + 1);
      if (column > row) {
        EXPECT_EQ(found[i], 0) << name(dtype);
      } else {
        EXPECT_NEAR(found[i], expected, 0x1p-9) << name(dtype);
      }
    }
  }
}

TEST(CrossEntropy, IsZeroWithoutGradientWhenNoRowCounts) {
  test::OneRank rank;
  for (bool fused : {true, false}) {
    const Tensor logits = test::leaf({1, 2, 3, 4}, {2, 2});
    const Tensor targets = test::ids({-1, -1});
    const Tensor loss =
        fused ? ops::cross_entropy(logits, targets, -1) : ops::composed::cross_entropy(logits, targets, -1);
    EXPECT_EQ(loss.item(), 0);
    autograd::backward(loss);
    EXPECT_THAT(test::grad(logits), Each(0.0));
  }
}

TEST(CrossEntropy, HasAnFp32LossForSixteenBitLogits) {
  test::OneRank rank;
  const Tensor logits = half({1, 2, 3, 4}, {2, 2});
  EXPECT_EQ(ops::cross_entropy(logits, test::ids({0, 1})).dtype(), DType::kF32);
  EXPECT_EQ(ops::composed::cross_entropy(logits, test::ids({0, 1}), -100).dtype(), DType::kF32);
}

TEST(CrossEntropy, TakesHostTargetsOfEitherIntegerType) {
  test::OneRank rank;
  const Tensor logits = constant(test::normals(6, 3), {2, 3});
  const Tensor device_targets = test::ids({2, 0});
  const Tensor host_targets = Tensor::host({2}, DType::kI32);
  host_targets.copy_from(device_targets);
  EXPECT_EQ(ops::cross_entropy(logits, host_targets).item(), ops::cross_entropy(logits, device_targets).item());
  EXPECT_EQ(ops::composed::cross_entropy(logits, host_targets, -100).item(),
            ops::composed::cross_entropy(logits, device_targets, -100).item());
}

}  // namespace
}  // namespace loom
