// Promise: Mixtral's, Qwen2-MoE's and DeepSeek-V3's configurations are read as they are published and as transformers
//          writes them, and are written back.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "models/decoder/decoder_config.h"
#include "tests/support/files.h"

namespace loom::models {
namespace {

const std::filesystem::path kLogits = std::filesystem::path(LOOM_SOURCE_DIR) / "tests/reference/logits";

// As https://huggingface.co/mistralai/Mixtral-8x7B-v0.1 has it, smaller.
const std::string kMixtral = R"({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 64,
  "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
  "num_key_value_heads": 2, "max_position_embeddings": 64, "num_local_experts": 8, "num_experts_per_tok": 2,
  "rms_norm_eps": 1e-5, "router_aux_loss_coef": 0.02, "torch_dtype": "bfloat16")";
// As https://huggingface.co/Qwen/Qwen1.5-MoE-A2.7B has it, smaller.
const std::string kQwen2Moe = R"({"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "vocab_size": 64,
  "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
  "num_key_value_heads": 4, "max_position_embeddings": 64, "num_experts": 8, "num_experts_per_tok": 4,
  "moe_intermediate_size": 24, "shared_expert_intermediate_size": 96, "sliding_window": 32768,
  "max_window_layers": 21, "rope_theta": 1e6)";

// As https://huggingface.co/deepseek-ai/DeepSeek-V3 has it, smaller.
const std::string kDeepseekV3 = R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
  "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
  "num_key_value_heads": 4, "max_position_embeddings": 64, "n_routed_experts": 8, "n_shared_experts": 2,
  "num_experts_per_tok": 3, "moe_intermediate_size": 24, "kv_lora_rank": 24, "qk_nope_head_dim": 16,
  "qk_rope_head_dim": 8, "v_head_dim": 12, "moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
  "aux_loss_alpha": 0.001, "seq_aux": true, "ep_size": 1, "num_nextn_predict_layers": 1)";

DecoderConfig parse(const std::string& keys) { return parse_decoder_json(keys + "}", "config.json"); }
std::string error_of(const std::string& keys) {
  return test::message_of<ConfigError>([&] { parse(keys); });
}

TEST(MoeConfig, OfMixtralHasExpertsOfTheSizeOfAnMlpInEveryLayer) {
  const DecoderConfig config = parse(kMixtral);
  EXPECT_EQ(config.family, DecoderFamily::kMixtral);
  EXPECT_EQ(config.moe->num_experts, 8);
  EXPECT_EQ(config.moe->moe_intermediate_size, 96);
  EXPECT_TRUE(config.moe->norm_topk_prob);
  EXPECT_TRUE(is_sparse_layer(config, 0) && is_sparse_layer(config, 3));
  EXPECT_FALSE(config.qkv_bias || config.attention_output_bias || config.qk_norm);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rope_theta, 1e6);  // the default of transformers' MixtralConfig
}

TEST(MoeConfig, OfQwen2MoeHasASharedExpertAndDenseLayers) {
  const DecoderConfig config = parse(kQwen2Moe + R"(, "mlp_only_layers": [2], "decoder_sparse_step": 2)");
  EXPECT_EQ(config.moe->shared_expert_intermediate_size, 96);
  EXPECT_FALSE(config.moe->norm_topk_prob);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_FALSE(is_sparse_layer(config, 0) || is_sparse_layer(config, 2));
  EXPECT_TRUE(is_sparse_layer(config, 1) && is_sparse_layer(config, 3));
  EXPECT_FALSE(parse(kQwen2Moe + R"(, "qkv_bias": false)").qkv_bias);
}

TEST(MoeConfig, OfDeepseekV3HasLatentAttentionAndGroupsOfExperts) {
  const DecoderConfig config = parse(kDeepseekV3 + R"(, "q_lora_rank": 40, "n_group": 4, "topk_group": 2,
      "routed_scaling_factor": 2.5, "first_k_dense_replace": 3, "head_dim": 8, "qk_head_dim": 24)");
  EXPECT_EQ(config.head_dim, 24);
  EXPECT_EQ(rotary_of(config).head_dim, 8);
  EXPECT_EQ(config.latent_attention->q_lora_rank, 40);
  EXPECT_TRUE(config.latent_attention->rope_interleave && config.moe->norm_topk_prob && config.moe->sigmoid_router);
  EXPECT_EQ(config.moe->shared_expert_intermediate_size, 48);
  EXPECT_EQ(config.moe->n_group, 4);
  EXPECT_TRUE(is_sparse_layer(config, 3));
  EXPECT_FALSE(is_sparse_layer(config, 2));
  EXPECT_EQ(parse(kDeepseekV3 + R"(, "q_lora_rank": null)").latent_attention->q_lora_rank, 0);
  const auto json = nlohmann::json::parse(to_json(parse(kDeepseekV3)));
  EXPECT_TRUE(json["q_lora_rank"].is_null());
  EXPECT_EQ(json["head_dim"], 8);  // transformers' rotary embedding reads it
}

TEST(MoeConfig, RefusesWhatDeepseekV3CannotBe) {
  const auto refused = [](const std::string& keys) { return error_of(kDeepseekV3 + ", " + keys); };
  EXPECT_EQ(refused(R"("head_dim": 16)"), "config.json: head_dim is 16; the other keys of the heads' sizes make it 8");
  EXPECT_EQ(refused(R"("n_group": 3)"),
            "config.json: n_group is 3; the 8 experts do not make so many equal groups of two or more");
  EXPECT_EQ(refused(R"("n_group": 8)"),
            "config.json: n_group is 8; the 8 experts do not make so many equal groups of two or more");
  EXPECT_EQ(refused(R"("n_group": 4, "topk_group": 1)"),
            "config.json: topk_group is 1; a token has 3 experts, and there are 4 groups of 2");
  EXPECT_EQ(refused(R"("output_router_logits": true)"),
            "config.json: output_router_logits is true; only false is built");
  EXPECT_EQ(error_of([] {
              std::string softmax = kDeepseekV3;
              return softmax.replace(softmax.find("sigmoid"), 7, "softmax");
            }()),
            "config.json: scoring_func is \"softmax\"; only \"sigmoid\" is built");
}

TEST(MoeConfig, IsReadFromTheReferencesAndWrittenBackEqual) {
  for (const DecoderConfig& config :
       {load_decoder_config(kLogits / "mixtral"), load_decoder_config(kLogits / "qwen2_moe"),
        load_decoder_config(kLogits / "deepseek_v3"), parse(kDeepseekV3), parse(kMixtral),
        parse(kQwen2Moe + R"(, "mlp_only_layers": [2], "qkv_bias": false)")}) {
    EXPECT_TRUE(parse_decoder_json(to_json(config), "config.json") == config) << to_json(config);
  }
  const auto json = nlohmann::json::parse(to_json(parse(kMixtral)));
  EXPECT_EQ(json["num_local_experts"], 8);
  EXPECT_FALSE(json.contains("moe_intermediate_size"));
}

// As in transformers: the coefficient alone changes nothing.
TEST(MoeConfig, HasARouterLossIfTheLogitsAreOutputAndItsCoefficientIsNotZero) {
  const auto has_loss = [](const std::string& keys) { return parse(kQwen2Moe + keys).moe->has_router_loss(); };
  EXPECT_FALSE(has_loss(""));
  EXPECT_FALSE(has_loss(R"(, "router_aux_loss_coef": 0.01)"));
  EXPECT_FALSE(has_loss(R"(, "router_aux_loss_coef": 0, "output_router_logits": true)"));
  EXPECT_TRUE(has_loss(R"(, "output_router_logits": true)"));
  const DecoderConfig config = parse(kMixtral + R"(, "output_router_logits": true)");
  EXPECT_TRUE(config.moe->has_router_loss());
  EXPECT_TRUE(parse_decoder_json(to_json(config), "config.json") == config) << to_json(config);
}

TEST(MoeConfig, RefusesWhatWouldChangeTheArithmetic) {
  EXPECT_EQ(error_of(kMixtral + R"(, "sliding_window": 4096)"),
            "config.json: sliding_window is 4096; sliding windows are not built, set it to null");
  EXPECT_EQ(error_of(kMixtral + R"(, "router_jitter_noise": 0.1)"),
            "config.json: router_jitter_noise is 0.1; only 0 is built");
  EXPECT_EQ(error_of(kMixtral + R"(, "num_experts": 4)"),
            "config.json: num_experts is 4; the file also says num_local_experts is 8");
  EXPECT_EQ(error_of(kQwen2Moe + R"(, "use_sliding_window": true)"),
            "config.json: sliding_window is 32768; sliding windows are not built, set use_sliding_window to false");
}

}  // namespace
}  // namespace loom::models
