// Promise: cross-entropy equals log(sum(exp)) - logit[target] summed over the rows that count, and its gradient the
//          derivative.
#include <gtest/gtest.h>
#include <limits>

#include "engine/kernels/fused.h"
#include "tests/kernels/fused_support.h"

namespace loom::kernels::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kIgnore = -100;

struct Sizes {
  std::int64_t rows, vocab;
};
// Packs of 16, blocks of 4096 with a rest, more rows than a tile of 65536 elements.
constexpr Sizes kSizes[] = {{0, 7}, {1, 1}, {3, 17}, {5, 4096}, {4, 9001}, {300, 500}};

std::vector<std::int64_t> some_targets(Sizes n) {
  std::vector<std::int64_t> targets;
  for (std::int64_t row = 0; row < n.rows; ++row) targets.push_back(row % 4 == 3 ? kIgnore : (row * 7919) % n.vocab);
  return targets;
}

double log_sum_exp(const double* x, std::int64_t vocab) {
  double top = -kInfinity;
  for (std::int64_t i = 0; i < vocab; ++i) top = std::max(top, x[i]);
  double sum = 0;
  for (std::int64_t i = 0; i < vocab; ++i) sum += std::exp(x[i] - top);
  return top + std::log(sum);
}

struct Reference {
  double loss = 0;
  std::int64_t rows = 0;
  Doubles lse;
};
Reference reference(Sizes n, const Doubles& logits, const std::vector<std::int64_t>& targets) {
  Reference result;
  for (std::int64_t row = 0; row < n.rows; ++row) {
    const double* x = logits.data() + row * n.vocab;
    result.lse.push_back(log_sum_exp(x, n.vocab));
    const std::int64_t target = targets[static_cast<std::size_t>(row)];
    if (target == kIgnore) continue;
    result.loss += result.lse.back() - x[target];
    result.rows += 1;
  }
  return result;
}

TEST(CrossEntropy, EqualsItsDefinition) {
  for (DType dtype : kFloats) {
    for (Sizes n : kSizes) {
      Doubles values = normals(n.rows * n.vocab, 1);
      for (double& value : values) value *= 5;
      const Buffer logits(dtype, values);
      const auto targets = some_targets(n);
      Buffer lse(stat_dtype(dtype), static_cast<std::size_t>(n.rows));
      const CrossEntropySum got = cross_entropy_forward({dtype, n.rows, n.vocab, DType::kI64, kIgnore}, logits.data(),
                                                        targets.data(), lse.data());
      const Reference want = reference(n, logits.values(), targets);
      EXPECT_EQ(got.rows, want.rows);
      EXPECT_NEAR(got.loss, want.loss, 16 * rounding(stat_dtype(dtype)) * (std::abs(want.loss) + 1));
      expect_close(stat_dtype(dtype), lse.values(), want.lse, 8, 4);
    }
  }
}

TEST(CrossEntropy, TakesInt32TargetsToo) {
  const Buffer logits = normal_buffer(DType::kF32, 3 * 10, 1);
  const std::vector<std::int64_t> wide{4, kIgnore, 9};
  const std::vector<std::int32_t> narrow{4, kIgnore, 9};
  Buffer a(DType::kF32, 3), b(DType::kF32, 3), da(DType::kF32, 30), db(DType::kF32, 30);
  const auto x =
      cross_entropy_forward({DType::kF32, 3, 10, DType::kI64, kIgnore}, logits.data(), wide.data(), a.data());
  const auto y =
      cross_entropy_forward({DType::kF32, 3, 10, DType::kI32, kIgnore}, logits.data(), narrow.data(), b.data());
  EXPECT_EQ(x.loss, y.loss);
  EXPECT_EQ(x.rows, 2);
  cross_entropy_backward({DType::kF32, 3, 10, DType::kI64, kIgnore}, logits.data(), wide.data(), a.data(), 1,
                         da.data());
  cross_entropy_backward({DType::kF32, 3, 10, DType::kI32, kIgnore}, logits.data(), narrow.data(), b.data(), 1,
                         db.data());
  EXPECT_EQ(da.bytes(), db.bytes());
}

Buffer gradient(DType dtype, Sizes n, const Buffer& logits, const std::vector<std::int64_t>& targets, double scale) {
  Buffer lse(stat_dtype(dtype), static_cast<std::size_t>(n.rows));
  Buffer dlogits(dtype, static_cast<std::size_t>(n.rows * n.vocab));
  cross_entropy_forward({dtype, n.rows, n.vocab, DType::kI64, kIgnore}, logits.data(), targets.data(), lse.data());
  cross_entropy_backward({dtype, n.rows, n.vocab, DType::kI64, kIgnore}, logits.data(), targets.data(), lse.data(),
                         scale, dlogits.data());
  return dlogits;
}

TEST(CrossEntropy, GradientIsTheDerivative) {
  constexpr Sizes n{5, 23};
  const auto targets = some_targets(n);
  const Buffer logits = normal_buffer(DType::kF64, n.rows * n.vocab, 1);
  expect_gradient(logits.values(), gradient(DType::kF64, n, logits, targets, 0.25).values(),
                  [&](const Doubles& at) { return 0.25 * reference(n, at, targets).loss; });
}

TEST(CrossEntropy, GradientOfEveryDtypeEqualsThatOfFp64) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (Sizes n : kSizes) {
      const auto targets = some_targets(n);
      const Buffer logits = normal_buffer(dtype, n.rows * n.vocab, 1);
      const Buffer want = gradient(DType::kF64, n, Buffer(DType::kF64, logits.values()), targets, 0.5);
      expect_close(dtype, gradient(dtype, n, logits, targets, 0.5).values(), want.values(), 16);
    }
  }
}

TEST(CrossEntropy, GradientMayReplaceTheLogits) {
  constexpr Sizes n{6, 1000};
  const auto targets = some_targets(n);
  for (DType dtype : kFloats) {
    Buffer logits = normal_buffer(dtype, n.rows * n.vocab, 1);
    const Buffer apart = gradient(dtype, n, logits, targets, 1.0 / 3);
    Buffer lse(stat_dtype(dtype), 6);
    cross_entropy_forward({dtype, n.rows, n.vocab, DType::kI64, kIgnore}, logits.data(), targets.data(), lse.data());
    cross_entropy_backward({dtype, n.rows, n.vocab, DType::kI64, kIgnore}, logits.data(), targets.data(), lse.data(),
                           1.0 / 3, logits.data());
    EXPECT_EQ(logits.bytes(), apart.bytes());
  }
}

TEST(CrossEntropy, HugeLogitsDoNotOverflow) {
  const std::vector<float> logits{1e30f, 0, -1e30f, 5000, 5000, 0};
  const std::vector<std::int64_t> targets{0, 1};
  std::vector<float> lse(2);
  const auto got =
      cross_entropy_forward({DType::kF32, 2, 3, DType::kI64, kIgnore}, logits.data(), targets.data(), lse.data());
  EXPECT_NEAR(got.loss, std::log(2.0), 1e-6);
  EXPECT_EQ(lse[0], 1e30f);
}

TEST(CrossEntropy, MaskedLogitsCountNothingAndNaNSpoils) {
  Doubles masked(5000, -kInfinity);  // the first block of 4096 is masked as a whole
  masked[4500] = 2;
  masked[4501] = 2;
  const std::vector<std::int64_t> target{4500};
  double lse = 0;
  const auto got =
      cross_entropy_forward({DType::kF64, 1, 5000, DType::kI64, kIgnore}, masked.data(), target.data(), &lse);
  EXPECT_NEAR(got.loss, std::log(2.0), 1e-15);
  for (std::size_t place : {std::size_t{0}, std::size_t{4999}}) {
    Doubles spoiled = masked;
    spoiled[place] = std::numeric_limits<double>::quiet_NaN();
    for (DType dtype : kFloats) {
      const Buffer x(dtype, spoiled);
      Buffer sum(stat_dtype(dtype), 1);
      EXPECT_TRUE(std::isnan(
          cross_entropy_forward({dtype, 1, 5000, DType::kI64, kIgnore}, x.data(), target.data(), sum.data()).loss));
    }
  }
}

TEST(CrossEntropy, NamesATargetOutsideTheVocabulary) {
  const Buffer logits = normal_buffer(DType::kF32, 3 * 10, 1);
  const std::vector<std::int64_t> targets{4, kIgnore, 10};
  Buffer lse(DType::kF32, 3), dlogits(DType::kF32, 30);
  const std::string want =
      "cross_entropy: target 10 in row 2 is outside the vocabulary [0, 10); fix the labels, or mark the row with "
      "ignore_index -100";
  EXPECT_EQ(
      error_text<ConfigError>([&] {
        cross_entropy_forward({DType::kF32, 3, 10, DType::kI64, kIgnore}, logits.data(), targets.data(), lse.data());
      }),
      want);
  EXPECT_EQ(error_text<ConfigError>([&] {
              cross_entropy_backward({DType::kF32, 3, 10, DType::kI64, kIgnore}, logits.data(), targets.data(),
                                     lse.data(), 1, dlogits.data());
            }),
            want);
  EXPECT_EQ(
      error_text<ModelError>([&] {
        cross_entropy_forward({DType::kF32, 3, 10, DType::kF32, kIgnore}, logits.data(), targets.data(), lse.data());
      }),
      "cross_entropy_forward takes indices of int32 or int64, got fp32; cast it");
}

}  // namespace
}  // namespace loom::kernels::testing
