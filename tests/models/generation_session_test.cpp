// Promise: a session's rows get the tokens that they get alone, end where they should, and read nothing twice.
// World:   a Qwen2 of two layers, on one rank and sharded over two and four.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/nn/init.h"
#include "models/decoder/decoder.h"
#include "models/generation/session.h"
#include "models/mixin/fsdp2_mixin.h"
#include "tests/models/test_rank.h"
#include "tests/support/files.h"
#include "tests/support/world.h"

namespace loom::models {
namespace {

using Tokens = std::vector<std::int32_t>;

DecoderConfig tiny() {
  DecoderConfig config;
  config.vocab_size = 40;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 6;
  config.max_position_embeddings = 32;
  config.initializer_range = 0.4;
  config.qkv_bias = true;
  return config;
}

const std::vector<Tokens> kPrompts{{1, 2, 3, 4, 5, 6, 7}, {9}, {8, 30, 12}};

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() {
    nn::materialize(*model_);
    nn::init_weights(*model_, 3);
  }
  Tokens tokens(const Tokens& prompt, const DecodingOptions& options) {
    GenerationSession session(*model_, config_);
    return session.generate({prompt}, options).front().tokens;
  }
  std::string refusal(const std::vector<Tokens>& prompts, const DecodingOptions& options) {
    return test::message_of<ConfigError>([&] { GenerationSession(*model_, config_).generate(prompts, options); });
  }

  const DecoderConfig config_ = tiny();
  test::TestRank rank_;
  std::shared_ptr<nn::Module> model_ = build_decoder(config_);
};

DecodingOptions drawn(std::uint64_t seed) {
  return {.sampling = {.temperature = 1.0, .top_k = 20}, .seed = seed, .max_new_tokens = 12};
}

TEST_F(SessionTest, ABatchGivesEachRowWhatItGetsAlone) {
  for (const DecodingOptions& options : {DecodingOptions{.max_new_tokens = 12}, drawn(5)}) {
    GenerationSession session(*model_, config_);
    const std::vector<Generation> rows = session.generate(kPrompts, options);
    for (std::size_t b = 0; b < kPrompts.size(); ++b) EXPECT_EQ(rows[b].tokens, tokens(kPrompts[b], options)) << b;
  }
}

TEST_F(SessionTest, ACacheAndThreadsChangeNoToken) {
  DecodingOptions without = drawn(6);
  without.use_cache = false;
  const Tokens made = tokens(kPrompts[0], drawn(6));
  EXPECT_EQ(tokens(kPrompts[0], without), made);
  EXPECT_NE(tokens(kPrompts[0], drawn(7)), made);
  DecodingOptions first = drawn(6);
  first.sampling.top_k = 1;
  DecodingOptions narrow = drawn(6);
  narrow.sampling.top_p = 1e-6;
  const Tokens greedy = tokens(kPrompts[0], {.max_new_tokens = 12});
  EXPECT_EQ(tokens(kPrompts[0], first), greedy);
  EXPECT_EQ(tokens(kPrompts[0], narrow), greedy);
}

TEST_F(SessionTest, RowsEndForTheirOwnReasons) {
  const Tokens alone = tokens(kPrompts[1], {.max_new_tokens = 40});
  const std::int32_t end = alone[3];
  GenerationSession session(*model_, config_);
  Tokens shown;
  GenerationEvents events;
  events.on_token = [&](std::size_t row, std::int32_t token) {
    if (row == 1) shown.push_back(token);
  };
  events.stops = [](std::size_t row, std::span<const std::int32_t> made) { return row == 2 && made.size() == 2; };
  const auto rows = session.generate(kPrompts, {.max_new_tokens = 100, .end_token_ids = {end}}, events);
  EXPECT_EQ(rows[1].reason, StopReason::kEndToken);
  EXPECT_EQ(rows[1].tokens.back(), end);
  EXPECT_EQ(shown, Tokens(rows[1].tokens.begin() + 1, rows[1].tokens.end()));
  EXPECT_THAT(rows[2].reason, ::testing::AnyOf(StopReason::kStopText, StopReason::kEndToken));
  EXPECT_LE(rows[2].tokens.size(), 5u);
  const auto full = GenerationSession(*model_, config_).generate({kPrompts[0]}, {.max_new_tokens = 100});
  EXPECT_EQ(full.front().message, "stopped after 25 of 100 tokens: max_position_embeddings is 32");
  const auto cut = GenerationSession(*model_, config_).generate({kPrompts[0]}, {.max_length = 9});
  EXPECT_EQ(cut.front().tokens.size(), 9u);
  EXPECT_EQ(cut.front().message, "made all 2 tokens");
}

TEST_F(SessionTest, AConversationIsReadOnce) {
  GenerationSession session(*model_, config_);
  Tokens talk = session.generate({kPrompts[0]}, {.max_new_tokens = 4}).front().tokens;
  EXPECT_EQ(session.cached_tokens(), 10);  // all but the last, which nobody has read
  talk.insert(talk.end(), {20, 21});
  const Tokens next = session.generate({talk}, {.max_new_tokens = 4}).front().tokens;
  EXPECT_EQ(next, tokens(talk, {.max_new_tokens = 4}));
  EXPECT_GT(session.cache_bytes(), 0);
  session.clear();
  EXPECT_EQ(session.cached_tokens(), 0);
  EXPECT_EQ(session.cache_bytes(), 0);
}

TEST_F(SessionTest, OneBeamIsGreedy) {
  GenerationSession session(*model_, config_);
  const BeamResult one = session.beam_search(kPrompts[0], {.beams = 1, .max_new_tokens = 8});
  EXPECT_EQ(one.generation.tokens, tokens(kPrompts[0], {.max_new_tokens = 8}));
  // Sessions of their own: a cached prompt is rounded as it was read, token by token or at once.
  const auto score = [&](int beams) {
    return GenerationSession(*model_, config_)
        .beam_search(kPrompts[0], {.beams = beams, .length_penalty = 0, .max_new_tokens = 8})
        .score;
  };
  EXPECT_GE(score(4), score(1));
}

TEST_F(SessionTest, RefusesPromptsThatHaveNoPlace) {
  EXPECT_EQ(refusal({}, {}), "no prompt is given; give at least one");
  EXPECT_EQ(refusal({{1}, {}}, {}), "prompt 2 is empty; give at least one token");
  EXPECT_EQ(refusal({Tokens(33, 1)}, {}),
            "the prompt has 33 tokens, but the model's max_position_embeddings is 32; use a shorter prompt");
  EXPECT_EQ(refusal({{1, 40}}, {}),
            "token 1 of the prompt is 40, but the model's vocab_size is 40; use the model's own tokenizer");
  EXPECT_EQ(
      refusal({{1, 2}}, {.max_length = 2}),
      "the prompt has 2 tokens, and the whole text may have 2 (max_length); give a larger one, or a shorter prompt");
}

// Each rank with a prompt of its own; ranks that have ended go on until all have.
TEST(ShardedSession, RanksWithPromptsOfTheirOwnEndTogether) {
  const auto made_on = [](int ranks, const std::string& yaml) {
    return test::of_each_rank(ranks, [&](RankContext& context, comm::World& world) {
      const DecoderConfig config = tiny();
      const auto model = build_decoder(config);
      models::fully_shard(*model, world, sharding::parse_fsdp2_config(yaml, "f.yaml"), {.weights = {.seed = 3}});
      GenerationSession session(*model, config);
      GenerationEvents events;
      const auto everyone = world.everyone("generation");
      events.all_ranks_ended = [&](bool ended) {
        float open = ended ? 0.0F : 1.0F;
        everyone->all_reduce(comm::kHostLane, &open, 1, DType::kF32, {}, "ended");
        return open == 0;
      };
      const auto rank = static_cast<std::size_t>(context.rank());
      const auto length = static_cast<std::int64_t>(3 + 4 * rank);
      return session.generate({kPrompts[rank % 3]}, {.max_new_tokens = length}, events).front().tokens;
    });
  };
  const auto sharded = made_on(3, "sharding_size: auto\nsub_modules_to_wrap: [\"model.layers.{*}\"]\n");
  test::TestRank rank;
  const DecoderConfig config = tiny();
  const auto model = build_decoder(config);
  nn::materialize(*model);
  nn::init_weights(*model, 3);
  for (std::size_t r = 0; r < 3; ++r) {
    GenerationSession session(*model, config);
    const auto length = static_cast<std::int64_t>(3 + 4 * r);
    EXPECT_EQ(session.generate({kPrompts[r]}, {.max_new_tokens = length}).front().tokens, sharded[r]) << r;
  }
}

}  // namespace
}  // namespace loom::models
