// Promise: generation adds the sampler's tokens to the prompt and says why it stopped.
// World:   a model of 10 tokens whose logits at a position are 1 for the token after the one there, else 0.
#include "models/generation/generation.h"

#include <algorithm>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/tensor/autograd.h"
#include "tests/models/test_rank.h"
#include "tests/support/files.h"

namespace loom::models {
namespace {

class Successor final : public nn::Module {
 public:
  std::string_view type_name() const override { return "Successor"; }
  bool saw_grad_mode = false;

 protected:
  nn::Value forward(const nn::Args& args) override {
    saw_grad_mode = saw_grad_mode || autograd::grad_enabled();
    const std::vector<std::int32_t> ids = args.tensor(0).to_vector<std::int32_t>();
    std::vector<float> logits(ids.size() * 10, 0.0F);
    for (std::size_t i = 0; i < ids.size(); ++i) logits[10 * i + static_cast<std::size_t>((ids[i] + 1) % 10)] = 1.0F;
    return Tensor::from(logits, {1, static_cast<std::int64_t>(ids.size()), 10});
  }
};

std::int32_t largest(std::span<const float> logits, std::int64_t) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

using Tokens = std::vector<std::int32_t>;

class GenerationTest : public ::testing::Test {
 protected:
  Generation run(const Tokens& prompt, const GenerationOptions& options) {
    return generate(model_, prompt, options, largest);
  }
  test::TestRank rank_;
  Successor model_;
};

TEST_F(GenerationTest, ContinuesFromTheLastPosition) {
  const Generation made = run({7, 3}, {.max_new_tokens = 4, .max_positions = 32, .end_token_ids = {}});
  EXPECT_EQ(made.tokens, (Tokens{7, 3, 4, 5, 6, 7}));
  EXPECT_EQ(made.reason, StopReason::kMaxNewTokens);
  EXPECT_EQ(made.message, "made all 4 tokens");
}

TEST_F(GenerationTest, StopsWithAMessageWhenThePositionsAreFull) {
  const Generation made = run({7, 3}, {.max_new_tokens = 40, .max_positions = 5, .end_token_ids = {}});
  EXPECT_EQ(made.tokens, (Tokens{7, 3, 4, 5, 6}));
  EXPECT_EQ(made.reason, StopReason::kPositionsFull);
  EXPECT_EQ(made.message, "stopped after 3 of 40 tokens: max_position_embeddings is 5");
}

TEST_F(GenerationTest, StopsAfterAnEndToken) {
  const Generation made = run({1}, {.max_new_tokens = 8, .max_positions = 32, .end_token_ids = {9, 3}});
  EXPECT_EQ(made.tokens, (Tokens{1, 2, 3}));
  EXPECT_EQ(made.reason, StopReason::kEndToken);
  EXPECT_EQ(made.message, "stopped after 2 of 8 tokens: end token");
}

TEST_F(GenerationTest, RecordsNothingAndShowsEachTokenAtItsPosition) {
  Tokens shown;
  std::vector<std::int64_t> positions;
  const Tokens prompt{1, 2};
  generate(
      model_, prompt, {.max_new_tokens = 2, .max_positions = 32, .end_token_ids = {}},
      [&](std::span<const float> logits, std::int64_t position) {
        positions.push_back(position);
        return largest(logits, position);
      },
      [&](std::int32_t token) { shown.push_back(token); });
  EXPECT_EQ(shown, (Tokens{3, 4}));
  EXPECT_EQ(positions, (std::vector<std::int64_t>{2, 3}));
  EXPECT_FALSE(model_.saw_grad_mode);
  EXPECT_TRUE(autograd::grad_enabled());
}

TEST_F(GenerationTest, RefusesAnEmptyPromptAndOneThatDoesNotFit) {
  const GenerationOptions options{.max_new_tokens = 1, .max_positions = 2, .end_token_ids = {}};
  EXPECT_EQ(test::message_of<ConfigError>([&] { run({}, options); }), "the prompt is empty; give at least one token");
  EXPECT_EQ(test::message_of<ConfigError>([&] {
              run({1, 2, 3}, options);
            }),
            "the prompt has 3 tokens, but the model's max_position_embeddings is 2; use a shorter prompt");
}

}  // namespace
}  // namespace loom::models
