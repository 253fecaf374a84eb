// Promise: GPT-2 drops embeddings, attention weights and what is added to the residual while it trains, by the rates of
//          its configuration and the numbers of its rank; evaluation and generation drop nothing; a recomputed layer
//          drops what it dropped before.
// World:   a model of two layers; the numbers of one rank begin at 0 before each call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/rng.h"
#include "engine/core/rng_state.h"
#include "engine/nn/functional.h"
#include "engine/nn/init.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "models/decoder/decoder.h"
#include "models/generation/generation.h"
#include "models/generation/sampling.h"
#include "recompute/checkpoint.h"
#include "tests/models/test_rank.h"

namespace loom::models {
namespace {

constexpr std::int64_t kTokens = 6;

DecoderConfig config(double attention, double embedding, double residual) {
  return {.family = DecoderFamily::kGpt2,
          .vocab_size = 16,
          .hidden_size = 8,
          .intermediate_size = 32,
          .num_hidden_layers = 2,
          .num_attention_heads = 2,
          .num_key_value_heads = 2,
          .head_dim = 4,
          .max_position_embeddings = 8,
          .attention_dropout = attention,
          .embedding_dropout = embedding,
          .residual_dropout = residual,
          .initializer_range = 0.3,
          .qkv_bias = true,
          .attention_output_bias = true,
          .mlp_bias = true,
          .tie_word_embeddings = true};
}

class Gpt2Dropout : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    rank_.context.slot<nn::KernelOptions>() = GetParam() ? nn::KernelOptions::fast() : nn::KernelOptions::pytorch();
  }
  static std::shared_ptr<nn::Module> build(const DecoderConfig& config) {
    auto model = build_decoder(config);
    nn::materialize(*model);
    nn::init_weights(*model, 5);
    return model;
  }
  static Tensor ids() {
    const Tensor ids = Tensor::host({1, kTokens}, DType::kI32, "ids");
    for (std::int32_t i = 0; i < kTokens; ++i) ids.data<std::int32_t>()[i] = 3 * i % 16;
    return ids;
  }
  static void begin_numbers() { RngState::current() = {stream_key(7, "dropout"), 0}; }
  static std::vector<float> logits(nn::Module& model) {
    begin_numbers();
    return model(ids()).tensor().to_vector<float>();
  }
  // The gradients of all parameters of one step.
  static std::vector<std::vector<float>> gradients(nn::Module& model) {
    begin_numbers();
    autograd::backward(ops::mean(model(ids())));
    std::vector<std::vector<float>> all;
    for (auto& [path, slot] : model.named_slots()) all.push_back(slot->value.grad().to_vector<float>());
    return all;
  }

  test::TestRank rank_;
};
INSTANTIATE_TEST_SUITE_P(Grain, Gpt2Dropout, ::testing::Bool());

TEST_P(Gpt2Dropout, TakesANumberForEachElementThatMayBeDropped) {
  const auto taken = [](const DecoderConfig& c) {
    const auto model = build(c);
    logits(*model);
    return RngState::current().next;
  };
  EXPECT_EQ(taken(config(0, 0, 0)), 0u);
  EXPECT_EQ(taken(config(0, 0.1, 0)), 48u);             // 6 tokens of 8
  EXPECT_EQ(taken(config(0, 0, 0.1)), 2u * 2 * 48);     // attention and MLP of two layers
  EXPECT_EQ(taken(config(0.1, 0, 0)), 2u * 2 * 6 * 6);  // two layers of two heads
}

TEST_P(Gpt2Dropout, IsOffInEvaluation) {
  const auto model = build(config(0.3, 0.3, 0.3)), plain = build(config(0, 0, 0));
  const auto trained = logits(*model);
  EXPECT_NE(trained, logits(*plain));
  EXPECT_EQ(trained, logits(*model));  // the same numbers, the same logits
  model->eval();
  // The fused attention, which has no weights to drop, is taken where nothing is dropped.
  EXPECT_EQ(logits(*model), logits(*plain));
  EXPECT_EQ(RngState::current().next, 0u);
}

TEST_P(Gpt2Dropout, IsOffInGenerationAndOnAfterwards) {
  const auto model = build(config(0.3, 0.3, 0.3)), plain = build(config(0, 0, 0));
  const auto greedy = [](std::span<const float> row, std::int64_t) { return choose_token(row, {}, 0, 0); };
  const GenerationOptions options{.max_new_tokens = 4, .max_positions = 8, .end_token_ids = {}};
  const std::vector<std::int32_t> prompt{1, 2, 3};
  EXPECT_EQ(generate(*model, prompt, options, greedy).tokens, generate(*plain, prompt, options, greedy).tokens);
  EXPECT_TRUE(model->training());
}

TEST_P(Gpt2Dropout, OfARecomputedLayerIsThatOfItsForward) {
  const auto plain = build(config(0.2, 0.1, 0.3)), recomputed = build(config(0.2, 0.1, 0.3));
  recompute::checkpoint(*recomputed->find("transformer.h.0"), {.path = "transformer.h.0"});
  recompute::checkpoint(*recomputed->find("transformer.h.1"), {.path = "transformer.h.1", .use_reentrant = false});
  EXPECT_EQ(gradients(*recomputed), gradients(*plain));
}

}  // namespace
}  // namespace loom::models
