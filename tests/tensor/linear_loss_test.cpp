// Promise: the chunked loss is the loss of the logits, and so are its gradients, whatever the chunk; it keeps no
//          logits; it leaves out what nobody needs.
#include "engine/tensor/ops/linear_loss.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "tests/support/files.h"
#include "tests/tensor/tensors.h"

namespace loom {
namespace {

using test::Doubles;

constexpr std::int64_t kBatch = 2, kSeq = 9, kHidden = 5, kVocab = 13;

Tensor targets_of(std::int64_t ignored) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < kBatch * kSeq; ++i) ids.push_back(i % 5 < ignored ? -100 : (7 * i + 3) % kVocab);
  return Tensor::from(ids, {kBatch, kSeq});
}

struct Outcome {
  double loss = 0;
  Doubles dx, dw;
};

// The gradient that comes in is 3.
Outcome outcome(DType dtype, const Tensor& targets, std::optional<std::int64_t> chunk) {
  const Tensor x = test::leaf(test::normals(kBatch * kSeq * kHidden, 1), {kBatch, kSeq, kHidden}, dtype);
  const Tensor w = test::leaf(test::normals(kVocab * kHidden, 2), {kVocab, kHidden}, dtype);
  const Tensor loss =
      chunk ? ops::linear_cross_entropy(x, w, targets, *chunk) : ops::cross_entropy(ops::linear(x, w), targets);
  autograd::backward(ops::scale(loss, 3.0));
  return {loss.item(), test::grad(x), test::grad(w)};
}

void expect_near(const Doubles& actual, const Doubles& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], tolerance) << i;
}

class LinearLoss : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(LinearLoss, IsThatOfTheLogitsAndSoAreTheGradients) {
  test::OneRank rank;
  for (const std::int64_t ignored : {0, 2}) {
    for (const auto& [dtype, tolerance] : {std::pair{DType::kF64, 1e-14}, {DType::kF32, 2e-6}, {DType::kBF16, 0.03}}) {
      const Tensor targets = targets_of(ignored);
      const Outcome whole = outcome(dtype, targets, {}), chunked = outcome(dtype, targets, GetParam());
      EXPECT_NEAR(chunked.loss, whole.loss, tolerance) << name(dtype);
      expect_near(chunked.dx, whole.dx, tolerance);
      expect_near(chunked.dw, whole.dw, tolerance);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Chunks, LinearLoss, ::testing::Values(1, 2, 7, kSeq, 2 * kSeq));

TEST(LinearLoss, OfTargetsThatAreAllIgnoredIsZero) {
  test::OneRank rank;
  const Outcome none = outcome(DType::kF32, targets_of(5), 4);
  EXPECT_EQ(none.loss, 0);
  expect_near(none.dx, Doubles(none.dx.size()), 0);
  expect_near(none.dw, Doubles(none.dw.size()), 0);
}

// Rounded once to bf16: each of the sums that fp64 has, to half a unit of bf16 and the noise of bf16 logits.
TEST(LinearLoss, SumsTheWeightsGradientInFp32) {
  test::OneRank rank;
  const Tensor targets = targets_of(0);
  EXPECT_EQ(outcome(DType::kBF16, targets, 1).dw, outcome(DType::kBF16, targets, kSeq).dw);
}

TEST(LinearLoss, KeepsGradientsAndNoLogits) {
  test::OneRank rank;
  const auto rounded = [](std::int64_t bytes) { return (bytes + 511) / 512 * 512; };
  constexpr std::int64_t kTokens = 64, kWide = 64, kWords = 1024, kChunk = 4;
  const Tensor x = Tensor::zeros({1, kTokens, kWide}, DType::kF32).set_requires_grad(true);
  const Tensor w = Tensor::zeros({kWords, kWide}, DType::kF32).set_requires_grad(true);
  const Tensor targets = Tensor::zeros({1, kTokens}, DType::kI64);
  rank.device().memory().reset_peaks();
  const std::int64_t before = rank.bytes();
  const Tensor loss = ops::linear_cross_entropy(x, w, targets, kChunk);
  const std::int64_t gradients = x.nbytes() + w.nbytes();
  EXPECT_EQ(rank.bytes() - before, gradients + rounded(4));
  EXPECT_EQ(rank.stats().peak_bytes - before, gradients + rounded(4 * kChunk * kWords) + rounded(4 * kChunk));
}

TEST(LinearLoss, LeavesOutWhatNobodyNeeds) {
  test::OneRank rank;
  const Tensor x = test::leaf(test::normals(kBatch * kSeq * kHidden, 1), {kBatch, kSeq, kHidden});
  const Tensor w = test::constant(test::normals(kVocab * kHidden, 2), {kVocab, kHidden});
  const std::int64_t before = rank.bytes();
  Tensor loss = ops::linear_cross_entropy(x, w, targets_of(0), 4);
  EXPECT_EQ(rank.bytes() - before, 1024 + 512);  // dx of 720 bytes, and the loss
  autograd::backward(loss);
  EXPECT_FALSE(w.grad().defined());
  const double recorded = loss.item();
  loss = {};
  const autograd::NoGrad no_grad;
  const std::int64_t here = rank.bytes();
  const Tensor alone = ops::linear_cross_entropy(x, w, targets_of(0), 4);
  EXPECT_EQ(rank.bytes() - here, 512);
  EXPECT_EQ(alone.item(), recorded);
}

TEST(LinearLoss, RefusesWhatDoesNotFit) {
  test::OneRank rank;
  const Tensor x = Tensor::zeros({2, 3, 4}, DType::kF32), w = Tensor::zeros({7, 5}, DType::kF32);
  EXPECT_THAT(
      test::message_of<ModelError>([&] {
        ops::linear_cross_entropy(x, w, test::ids({0, 1}), 1);
      }),
      ::testing::HasSubstr("linear_cross_entropy: input fp32 [2, 3, 4] with weight fp32 [7, 5] and targets [2]; "
                           "[..., S, H], [V, H] in one dtype and [..., S] are needed"));
}

}  // namespace
}  // namespace loom
