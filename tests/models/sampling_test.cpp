// Promise: tokens are drawn with the probabilities of the softmax, from the largest logits only, the same for the same
//          seed.
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
  // Weights 4, 1, 3, 2; the top 2 share 4 : 3. Equal logits: the first is kept.
  const std::array<float, 4> logits{std::log(4.0f), std::log(1.0f), std::log(3.0f), std::log(2.0f)};
  const auto found = counts(logits, {.temperature = 1.0, .top_k = 2}, 7000);
  EXPECT_NEAR(found[0], 4000, 4 * 42);
  EXPECT_EQ(found[0] + found[2], 7000);
  EXPECT_EQ(counts(std::array{1.0f, 1.0f, 1.0f}, {.temperature = 1.0, .top_k = 1}, 100)[0], 100);
  EXPECT_GT(counts(logits, {.temperature = 1.0, .top_k = 99}, 1000)[1], 0);
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
  EXPECT_EQ(error({kInfinity, 0.0f}),
            "logit 0 of 2 is inf: the model has diverged; train with a smaller learning rate");
  EXPECT_EQ(error({-kInfinity, -kInfinity}), "all 2 logits are -inf: no token is allowed");
}

}  // namespace
}  // namespace loom::models
