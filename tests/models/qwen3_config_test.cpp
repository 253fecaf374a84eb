// Promise: the keys of Qwen3 and Qwen3-MoE are read completely, under either name for the number of experts, or refused
//          with file, key and value.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "models/decoder/decoder_config.h"
#include "tests/support/files.h"

namespace loom::models {
namespace {

// Without closing brace; tests append keys, and parse() keeps the last of those that are repeated.
const std::string kQwen3 = R"({"model_type": "qwen3", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 172,
  "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256)";
const std::string kMoe =
    kQwen3 + R"(, "model_type": "qwen3_moe", "num_experts_per_tok": 2, "moe_intermediate_size": 48)";
const std::string kEight = R"(, "num_experts": 8)";

DecoderConfig parse(const std::string& keys) {
  return parse_decoder_json(nlohmann::ordered_json::parse(keys + "}").dump(), "config.json");
}
std::string error_of(const std::string& keys) {
  return test::message_of<ConfigError>([&] { parse(keys); });
}

std::filesystem::path reference() {
  return std::filesystem::path(LOOM_SOURCE_DIR) / "tests/reference/training/qwen3moe_w2";
}

TEST(Qwen3Config, ReadsTheConfigOfTheReference) {
  const DecoderConfig config = load_decoder_config(reference());
  EXPECT_EQ(config.family, DecoderFamily::kQwen3Moe);
  EXPECT_TRUE(config.qk_norm);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rope_theta, 1e6);
  const MoeConfig expected{.num_experts = 8,
                           .num_experts_per_tok = 2,
                           .moe_intermediate_size = 48,
                           .norm_topk_prob = true,
                           .decoder_sparse_step = 1,
                           .mlp_only_layers = {},
                           .router_aux_loss_coef = 0};
  EXPECT_TRUE(config.moe == expected);
}

TEST(Qwen3Config, HasAHeadDimOfItsOwn) {
  EXPECT_EQ(parse(kQwen3).head_dim, 128);  // the default of transformers' Qwen3Config
  EXPECT_EQ(parse(kQwen3 + R"(, "head_dim": 24)").head_dim, 24);
  EXPECT_EQ(parse(kMoe + kEight).head_dim, 16);  // that of Qwen3MoeConfig: 64 / 4
}

TEST(Qwen3Config, HasBiasesInAttentionWhereItSaysSo) {
  const DecoderConfig config = parse(kQwen3 + R"(, "attention_bias": true)");
  EXPECT_TRUE(config.qkv_bias && config.attention_output_bias);
  EXPECT_FALSE(config.mlp_bias);
}

TEST(Qwen3Config, ReadsTheNumberOfExpertsUnderBothNames) {
  EXPECT_EQ(parse(kMoe + kEight).moe->num_experts, 8);
  EXPECT_EQ(parse(kMoe + R"(, "num_local_experts": 8)").moe->num_experts, 8);
  EXPECT_EQ(parse(kMoe + kEight + R"(, "num_local_experts": 8)").moe->num_experts, 8);
  EXPECT_EQ(error_of(kMoe + kEight + R"(, "num_local_experts": 4)"),
            "config.json: num_experts is 8; the file also says num_local_experts is 4");
  EXPECT_EQ(error_of(kMoe), "config.json: num_experts is missing");
  EXPECT_EQ(error_of(kMoe + R"(, "num_experts": 0)"), "config.json: num_experts is 0; it must be at least 1");
}

TEST(Qwen3Config, TakesTransformersDefaults) {
  const MoeConfig moe = *parse(kMoe + kEight).moe;
  EXPECT_FALSE(moe.norm_topk_prob);
  EXPECT_EQ(moe.decoder_sparse_step, 1);
  EXPECT_EQ(moe.router_aux_loss_coef, 0.001);
}

TEST(Qwen3Config, SaysWhichLayersHaveExperts) {
  const auto sparse = [](const DecoderConfig& config) {
    std::vector<bool> layers;
    for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) layers.push_back(is_sparse_layer(config, i));
    return layers;
  };
  EXPECT_EQ(sparse(parse(kQwen3)), (std::vector<bool>{false, false, false, false}));
  EXPECT_EQ(sparse(parse(kMoe + kEight)), (std::vector<bool>{true, true, true, true}));
  EXPECT_EQ(sparse(parse(kMoe + kEight + R"(, "decoder_sparse_step": 2)")),
            (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(sparse(parse(kMoe + kEight + R"(, "decoder_sparse_step": 2, "mlp_only_layers": [1, 2])")),
            (std::vector<bool>{false, false, false, true}));
}

TEST(Qwen3Config, RefusesExpertsThatDoNotFitTogether) {
  EXPECT_EQ(error_of(kMoe + kEight + R"(, "num_experts_per_tok": 9)"),
            "config.json: num_experts_per_tok is 9; there are 8 experts");
  EXPECT_EQ(error_of(kMoe + kEight + R"(, "mlp_only_layers": [0, 4])"),
            "config.json: mlp_only_layers is [0,4]; layers are numbered 0 to 3");
  EXPECT_EQ(error_of(kMoe + kEight + R"(, "decoder_sparse_step": 0)"),
            "config.json: decoder_sparse_step is 0; it must be at least 1");
}

TEST(Qwen3Config, RefusesSlidingWindowsAndDropout) {
  EXPECT_EQ(error_of(kQwen3 + R"(, "use_sliding_window": true, "sliding_window": 4096)"),
            "config.json: sliding_window is 4096; sliding windows are not built, set use_sliding_window to false");
  EXPECT_EQ(error_of(kQwen3 + R"(, "attention_dropout": 0.1)"),
            "config.json: attention_dropout is 0.1; dropout is not built, set it to 0");
}

TEST(Qwen3Config, RefusesExpertsKeysInYamlOfADenseModel) {
  const std::string yaml =
      "model_type: qwen3\nvocab_size: 8\nhidden_size: 8\nintermediate_size: 8\nnum_hidden_layers: 1\n"
      "num_attention_heads: 1\nnum_key_value_heads: 1\nmax_position_embeddings: 8\nnum_experts: 4\n";
  EXPECT_EQ(test::message_of<ConfigError>([&] { parse_decoder_yaml(yaml, "tiny.yaml"); }),
            "tiny.yaml:9:1: unknown key 'num_experts'");
}

TEST(Qwen3Config, WhatIsWrittenReadsBackEqual) {
  for (const DecoderConfig& config :
       {parse(kQwen3 + R"(, "attention_bias": true)"), load_decoder_config(reference()),
        parse(kMoe + kEight + R"(, "decoder_sparse_step": 2, "mlp_only_layers": [3], "head_dim": 32)")}) {
    EXPECT_TRUE(parse_decoder_json(to_json(config), "config.json") == config) << to_json(config);
  }
}

}  // namespace
}  // namespace loom::models
