// Promise: tokens are drawn with the probabilities of the softmax, from the tokens that penalty, top-k, top-p and min-p
//          leave, the same for the same seed.
#include "models/generation/sampling.h"

#include <array>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::models {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::uint64_t kKey = 42;

// How often each token comes up in `draws` draws.
template <std::size_t N>
std::array<int, N> counts(const std::array<float, N>& logits, const SamplingOptions& options, int draws) {
  std::array<int, N> counts{};
  for (int i = 0; i < draws; ++i) {
    ++counts.at(static_cast<std::size_t>(choose_token(logits, options, kKey, static_cast<std::uint64_t>(i))));
  }
  return counts;
}

TEST(ChooseToken, IsGreedyAtTemperatureZeroAndTakesTheFirstOfEquals) {
  const std::vector<float> logits{-1.0f, 3.0f, 2.0f, 3.0f};
  EXPECT_EQ(choose_token(logits, {}, kKey, 0), 1);
}

TEST(ChooseToken, DrawsWithTheProbabilitiesOfTheSoftmax) {
  // exp(l) = 1, 2, 5: of 8000 draws 1000, 2000, 5000; a standard deviation is at most sqrt(8000 / 4) = 45.
  const std::array<float, 3> logits{std::log(1.0f), std::log(2.0f), std::log(5.0f)};
  const auto found = counts(logits, {.temperature = 1.0}, 8000);
  EXPECT_NEAR(found[0], 1000, 4 * 45);
  EXPECT_NEAR(found[1], 2000, 4 * 45);
  EXPECT_NEAR(found[2], 5000, 4 * 45);
}

TEST(ChooseToken, SharpensAndFlattensWithTheTemperature) {
  // Weights 1 and 3 become 1 and 9 at T = 1/2, and 1 and sqrt(3) at T = 2.
  const std::array<float, 2> logits{0.0f, std::log(3.0f)};
  EXPECT_NEAR(counts(logits, {.temperature = 0.5}, 8000)[1], 8000 * 0.9, 4 * 45);
  EXPECT_NEAR(counts(logits, {.temperature = 2.0}, 8000)[1], 8000 * std::sqrt(3.0) / (1 + std::sqrt(3.0)), 4 * 45);
  EXPECT_EQ(counts(logits, {.temperature = 1e-300}, 100)[1], 100);
}

TEST(ChooseToken, DrawsFromTheTopKOnly) {
  // Weights 4, 1, 3, 2; the top 2 share 4 : 3. A k above the vocabulary is no limit.
  const std::array<float, 4> logits{std::log(4.0f), std::log(1.0f), std::log(3.0f), std::log(2.0f)};
  const auto found = counts(logits, {.temperature = 1.0, .top_k = 2}, 7000);
  EXPECT_NEAR(found[0], 4000, 4 * 42);
  EXPECT_EQ(found[0] + found[2], 7000);
  EXPECT_GT(counts(logits, {.temperature = 1.0, .top_k = 99}, 1000)[1], 0);
}

TEST(NextTokenProbabilities, KeepTiesAtTheEndOfTopK) {
  const std::array<float, 4> logits{1.0f, 2.0f, 1.0f, 0.0f};
  const std::vector<double> p = next_token_probabilities(logits, {.temperature = 1.0, .top_k = 2});
  EXPECT_GT(p[0], 0);
  EXPECT_EQ(p[0], p[2]);
  EXPECT_EQ(p[3], 0);
  EXPECT_NEAR(p[0] + p[1] + p[2], 1, 1e-12);
}

TEST(NextTokenProbabilities, OfTopPEndWithTheTokenThatExceedsIt) {
  // 0.5, 0.3, 0.2: before the second token the sum is 0.5, before the third 0.8.
  const std::array<float, 3> logits{std::log(3.0f), std::log(5.0f), std::log(2.0f)};
  const auto kept = [&](double p) {
    std::vector<bool> kept;
    for (const double q : next_token_probabilities(logits, {.temperature = 1.0, .top_p = p})) kept.push_back(q > 0);
    return kept;
  };
  EXPECT_EQ(kept(1e-9), (std::vector<bool>{false, true, false}));
  EXPECT_EQ(kept(0.49), (std::vector<bool>{false, true, false}));
  EXPECT_EQ(kept(0.6), (std::vector<bool>{true, true, false}));
  EXPECT_EQ(kept(0.9), (std::vector<bool>{true, true, true}));
}

TEST(NextTokenProbabilities, OfMinPAreAtLeastItsShareOfTheLikeliest) {
  const std::array<float, 3> logits{std::log(3.0f), std::log(5.0f), std::log(2.0f)};
  const std::vector<double> p = next_token_probabilities(logits, {.temperature = 1.0, .min_p = 0.5});
  EXPECT_NEAR(p[0], 3.0 / 8, 1e-6);
  EXPECT_NEAR(p[1], 5.0 / 8, 1e-6);
  EXPECT_EQ(p[2], 0);
}

TEST(NextTokenProbabilities, ArePenalizedOnceForEachTokenOfTheRow) {
  const std::array<float, 3> logits{2.0f, -1.0f, 0.5f};
  const std::vector<std::int32_t> row{0, 1, 1, 0, 7};  // 7 is no token of this vocabulary
  const std::array<float, 3> after{1.0f, -2.0f, 0.5f};
  EXPECT_EQ(next_token_probabilities(logits, {.temperature = 1.0, .repetition_penalty = 2}, row),
            next_token_probabilities(after, {.temperature = 1.0}));
  EXPECT_EQ(choose_token(std::array{1.0f, 0.9f}, {.repetition_penalty = 2}, kKey, 0, std::vector<std::int32_t>{0}), 1);
}

TEST(LogProbabilities, SumToOneAndAreMadeSmallerByThePenalty) {
  const std::array<float, 3> logits{2.0f, -1.0f, 0.5f};
  const std::vector<double> plain = log_probabilities(logits);
  EXPECT_NEAR(std::exp(plain[0]) + std::exp(plain[1]) + std::exp(plain[2]), 1, 1e-12);
  const std::vector<double> penalized = log_probabilities(logits, 1.5, std::vector<std::int32_t>{2, 2});
  EXPECT_EQ(penalized[0], plain[0]);
  EXPECT_EQ(penalized[2], 1.5 * plain[2]);
}

TEST(ChooseToken, IsTheSameForTheSameKeyAndPosition) {
  const std::vector<float> logits(256, 0.0f);
  const auto text = [&](std::uint64_t key) {
    std::vector<std::int32_t> tokens;
    for (std::uint64_t i = 0; i < 64; ++i) tokens.push_back(choose_token(logits, {.temperature = 1.0}, key, i));
    return tokens;
  };
  EXPECT_EQ(text(1), text(1));
  EXPECT_NE(text(1), text(2));
}

TEST(ChooseToken, NeverDrawsAMaskedToken) {
  EXPECT_EQ(counts(std::array{-kInfinity, 1.0f, -kInfinity}, {.temperature = 5.0}, 1000)[1], 1000);
}

TEST(ChooseToken, StaysFiniteForLargeLogits) {
  EXPECT_EQ(counts(std::array{3e38f, -3e38f}, {.temperature = 1.0}, 100)[0], 100);
}

TEST(ChooseToken, SaysThatTheModelHasDiverged) {
  const auto error = [](std::vector<float> logits) {
    return test::message_of<Error>([&] { choose_token(logits, {}, kKey, 0); });
  };
  EXPECT_EQ(error({0.0f, std::nanf("")}),
            "logit 1 of 2 is nan: the model has diverged; train with a smaller learning rate");
  EXPECT_EQ(error({0.0f, -std::nanf("")}),
            "logit 1 of 2 is nan: the model has diverged; train with a smaller learning rate");
  EXPECT_EQ(error({kInfinity, 0.0f}),
            "logit 0 of 2 is inf: the model has diverged; train with a smaller learning rate");
  EXPECT_EQ(error({-kInfinity, -kInfinity}), "all 2 logits are -inf: no token is allowed");
}

TEST(ChooseToken, BlamesThePenaltyWhereThatAloneMadeALogitTooLarge) {
  const std::vector<float> logits{3.0f, 1.0f};
  const std::vector<std::int32_t> row{0};
  for (const double penalty : {1e-300, 1e-39}) {
    EXPECT_EQ(
        test::message_of<ConfigError>([&] { choose_token(logits, {.repetition_penalty = penalty}, kKey, 0, row); }),
        fmt::format("the repetition penalty is {}, with which logits leave the range of fp32 (3.4028235e+38); use "
                    "one nearer to 1",
                    penalty));
  }
  EXPECT_EQ(choose_token(logits, {.repetition_penalty = 1e30}, kKey, 0, row), 1);
}

}  // namespace
}  // namespace loom::models
