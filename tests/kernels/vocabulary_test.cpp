// Promise: the pieces of a cross-entropy whose columns lie in parts give the cross-entropy of the joined columns, and
//          its gradient; padding never counts.
// World:   the parts of all ranks, one after another on one thread; what ranks exchange is computed here.
#include "engine/kernels/vocabulary.h"

#include <gtest/gtest.h>
#include <limits>

#include "tests/kernels/fused_support.h"

namespace loom::kernels::testing {
namespace {

constexpr std::int64_t kIgnore = -100;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Part {
  std::int64_t first, cols;
};
// Packs of 16, blocks of 4096 with a rest; an empty part, one that ends in padding and one of padding alone.
struct Split {
  std::int64_t rows, vocab;
  std::vector<Part> parts;
};
const std::vector<Split>& splits() {
  static const std::vector<Split> all{{0, 7, {{0, 4}, {4, 4}}},
                                      {5, 7, {{0, 7}}},
                                      {6, 33, {{0, 17}, {17, 0}, {17, 16}}},
                                      {4, 9001, {{0, 4500}, {4500, 4512}, {9012, 20}}},
                                      {300, 500, {{0, 125}, {125, 250}, {375, 125}}}};
  return all;
}

std::vector<std::int64_t> some_targets(const Split& split) {
  std::vector<std::int64_t> targets;
  for (std::int64_t row = 0; row < split.rows; ++row)
    targets.push_back(row % 4 == 3 ? kIgnore : (row * 7919) % split.vocab);
  return targets;
}

// The columns of a part; its padding would win everywhere.
Buffer columns(DType dtype, const Split& split, const Part& part, const Doubles& logits) {
  Doubles values;
  for (std::int64_t row = 0; row < split.rows; ++row) {
    for (std::int64_t id = part.first; id < part.first + part.cols; ++id) {
      values.push_back(id < split.vocab ? logits[static_cast<std::size_t>(row * split.vocab + id)] : 1000);
    }
  }
  return Buffer(dtype, values);
}

struct Outcome {
  CrossEntropySum loss;
  Doubles gradient;  // [rows, vocab]
};

// In fp64.
Outcome whole(const Split& split, const Doubles& values, const std::vector<std::int64_t>& targets) {
  const CrossEntropy op{DType::kF64, split.rows, split.vocab, DType::kI64, kIgnore};
  const Buffer logits(op.dtype, values);
  Doubles lse(targets.size());
  Outcome outcome{{}, Doubles(values.size())};
  outcome.loss = cross_entropy_forward(op, logits.data(), targets.data(), lse.data());
  cross_entropy_backward(op, logits.data(), targets.data(), lse.data(), 0.5, outcome.gradient.data());
  return outcome;
}

// [rows] each, of one part or of all.
struct Statistics {
  Statistics(DType dtype, std::int64_t rows)
      : largest(stat_dtype(dtype), static_cast<std::size_t>(rows)), sum(largest), target_logit(largest) {}
  Buffer largest, sum, target_logit;
};

Statistics joined(DType dtype, const Split& split, std::vector<Statistics>& parts) {
  Statistics all = parts[0];
  Doubles top = parts[0].largest.values(), sum(top.size()), logit(top.size());
  for (const Statistics& part : parts) {
    const Doubles values = part.largest.values();
    for (std::size_t i = 0; i < top.size(); ++i) top[i] = std::max(top[i], values[i]);
  }
  all.largest = Buffer(stat_dtype(dtype), top);
  for (Statistics& part : parts) {
    vocabulary_rescale({.dtype = dtype, .rows = split.rows}, part.largest.data(), all.largest.data(), part.sum.data());
    const Doubles sums = part.sum.values(), logits = part.target_logit.values();
    for (std::size_t i = 0; i < top.size(); ++i) {
      sum[i] += sums[i];
      logit[i] += logits[i];
    }
  }
  all.sum = Buffer(stat_dtype(dtype), sum);
  all.target_logit = Buffer(stat_dtype(dtype), logit);
  return all;
}

Outcome in_parts(DType dtype, const Split& split, const Doubles& logits, const std::vector<std::int64_t>& targets) {
  std::vector<VocabularyPart> ops;
  std::vector<Buffer> inputs;
  std::vector<Statistics> statistics;
  for (const Part& part : split.parts) {
    ops.push_back({dtype, split.rows, part.cols, part.first, split.vocab, DType::kI64, kIgnore});
    inputs.push_back(columns(dtype, split, part, logits));
    Statistics& own = statistics.emplace_back(dtype, split.rows);
    vocabulary_statistics(ops.back(), inputs.back().data(), targets.data(), own.largest.data(), own.sum.data(),
                          own.target_logit.data());
  }
  const Statistics all = joined(dtype, split, statistics);
  Outcome outcome;
  outcome.loss = vocabulary_loss(ops[0], targets.data(), all.largest.data(), all.sum.data(), all.target_logit.data());
  outcome.gradient.resize(logits.size());
  for (std::size_t p = 0; p < ops.size(); ++p) {
    vocabulary_gradient(ops[p], inputs[p].data(), targets.data(), all.largest.data(), all.sum.data(), 0.5,
                        inputs[p].data());  // in place of the logits
    const Doubles gradient = inputs[p].values();
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      const std::int64_t id = ops[p].first + at % ops[p].cols;
      if (id < split.vocab) {
        outcome.gradient[static_cast<std::size_t>(at / ops[p].cols * split.vocab + id)] = gradient[i];
      } else {
        EXPECT_EQ(gradient[i], 0) << "padding";
      }
    }
  }
  return outcome;
}

TEST(VocabularyParts, GiveTheCrossEntropyOfTheWhole) {
  for (DType dtype : kFloats) {
    for (const Split& split : splits()) {
      const auto targets = some_targets(split);
      const Buffer logits = normal_buffer(dtype, split.rows * split.vocab, 1);
      const Outcome want = whole(split, logits.values(), targets);
      const Outcome got = in_parts(dtype, split, logits.values(), targets);
      EXPECT_EQ(got.loss.rows, want.loss.rows);
      EXPECT_NEAR(got.loss.loss, want.loss.loss, 16 * rounding(stat_dtype(dtype)) * (want.loss.loss + 1));
      expect_close(dtype, got.gradient, want.gradient, 16);
    }
  }
}

// fp32 numbers near 1e4 have 13 bits behind the point: differences of the scores count, not their size.
TEST(VocabularyParts, KeepTheirPrecisionAtLargeScores) {
  const Split split{8, 33, {{0, 17}, {17, 16}}};
  const auto targets = some_targets(split);
  Doubles values = normals(split.rows * split.vocab, 1);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += i / 33 % 2 == 0 ? 1e4 : -1e4;
  const Doubles logits = Buffer(DType::kF32, values).values();
  const Outcome want = whole(split, logits, targets);
  const Outcome got = in_parts(DType::kF32, split, logits, targets);
  EXPECT_NEAR(got.loss.loss, want.loss.loss, 1e-6 * want.loss.loss);
  expect_close(DType::kF32, got.gradient, want.gradient, 8);
}

TEST(VocabularyParts, MaskedLogitsCountNothingAndNaNSpoils) {
  const Split split{1, 6, {{0, 2}, {2, 2}, {4, 2}}};
  const Doubles masked{-kInfinity, -kInfinity, 2, -kInfinity, 2, -kInfinity};
  EXPECT_NEAR(in_parts(DType::kF64, split, masked, {4}).loss.loss, std::log(2.0), 1e-15);
  for (DType dtype : kFloats) {
    for (std::size_t place : {std::size_t{0}, std::size_t{5}}) {
      for (const double bad : {std::numeric_limits<double>::quiet_NaN(), kInfinity}) {
        Doubles spoiled = masked;
        spoiled[place] = bad;
        EXPECT_TRUE(std::isnan(in_parts(dtype, split, spoiled, {4}).loss.loss)) << name(dtype);
      }
    }
  }
}

TEST(VocabularyParts, NameATargetOutsideTheVocabulary) {
  const std::vector<std::int32_t> targets{4, -100, 7};
  const VocabularyPart op{DType::kF32, 3, 4, 4, 7, DType::kI32, kIgnore};
  const Buffer logits = normal_buffer(DType::kF32, 3 * 4, 1);
  Statistics out(DType::kF32, 3);
  EXPECT_EQ(error_text<ConfigError>([&] {
              vocabulary_statistics(op, logits.data(), targets.data(), out.largest.data(), out.sum.data(),
                                    out.target_logit.data());
            }),
            "cross_entropy: target 7 in row 2 is outside the vocabulary [0, 7); fix the labels, or mark the row with "
            "ignore_index -100");
}

}  // namespace
}  // namespace loom::kernels::testing
