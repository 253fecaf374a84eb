// Promise: module trees have Hugging Face's parameter paths, shapes and class names, and cost nothing to build.
#include <cmath>
#include <gtest/gtest.h>
#include <map>

#include "engine/core/error.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/nn/init.h"
#include "engine/nn/state_dict.h"
#include "models/decoder/decoder.h"
#include "tests/models/test_rank.h"
#include "tests/support/files.h"

namespace loom::models {
namespace {

std::filesystem::path logits_case(const std::string& name) {
  return std::filesystem::path(LOOM_SOURCE_DIR) / "tests/reference/logits" / name;
}

std::shared_ptr<nn::Module> build(const std::string& name) {
  return build_decoder(load_decoder_config(logits_case(name)));
}

using Shapes = std::map<std::string, std::vector<std::int64_t>>;

Shapes stored_shapes(const std::string& name) {
  const io::SafetensorsFile file(logits_case(name) / "model.safetensors");
  Shapes shapes;
  for (const auto& tensor : file.tensors()) shapes[tensor.name] = tensor.shape.sizes();
  return shapes;
}

Shapes saved_shapes(nn::Module& model) {
  Shapes shapes;
  for (const auto& [path, tensor] : model.named_parameters()) shapes[path] = tensor.shape().sizes();
  for (const auto& [path, tensor] : nn::persistent_buffers(model)) shapes[path] = tensor.shape().sizes();
  return shapes;
}

class EveryFamily : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Decoder, EveryFamily,
                         ::testing::Values("qwen2", "llama", "gpt2", "mixtral", "qwen2_moe", "deepseek_v3"));

TEST_P(EveryFamily, HasTheTensorsOfTheReferenceFile) {
  const auto model = build(GetParam());
  EXPECT_EQ(saved_shapes(*model), stored_shapes(GetParam()));
}

TEST_P(EveryFamily, IsBuiltWithoutARankAndWithoutBytes) {
  ASSERT_EQ(RankContext::current_or_null(), nullptr);
  const auto model = build(GetParam());
  for (const auto& [path, slot] : model->named_slots()) EXPECT_TRUE(slot->value.is_meta()) << path;
}

TEST_P(EveryFamily, RefusesMoreTokensThanItHasPositions) {
  const test::TestRank rank;
  DecoderConfig config = load_decoder_config(logits_case(GetParam()));
  config.max_position_embeddings = 8;
  config.rope_scaling = {};
  const auto model = build_decoder(config);
  const std::string message = test::message_of<ConfigError>([&] { (*model)(Tensor::host({1, 9}, DType::kI32)); });
  EXPECT_EQ(message, "a sequence of 9 tokens, but the model's max_position_embeddings is 8; use shorter sequences");
}

std::vector<std::pair<std::string, std::string>> classes_of(nn::Module& model, const std::vector<std::string>& paths) {
  std::vector<std::pair<std::string, std::string>> classes;
  for (const std::string& path : paths) {
    nn::Module* const found = model.find(path);
    classes.emplace_back(path, found == nullptr ? "absent" : std::string(found->type_name()));
  }
  return classes;
}

using Classes = std::vector<std::pair<std::string, std::string>>;

std::vector<std::string> paths_of(const Classes& classes) {
  std::vector<std::string> paths;
  for (const auto& [path, type] : classes) paths.push_back(path);
  return paths;
}

TEST(DecoderClasses, AreThoseOfTransformersForQwen2) {
  const Classes expected{{"", "Qwen2ForCausalLM"},
                         {"model", "Qwen2Model"},
                         {"model.embed_tokens", "Embedding"},
                         {"model.layers", "ModuleList"},
                         {"model.layers.3", "Qwen2DecoderLayer"},
                         {"model.layers.3.self_attn", "Qwen2Attention"},
                         {"model.layers.3.mlp", "Qwen2MLP"},
                         {"model.layers.3.input_layernorm", "RMSNorm"},
                         {"model.rotary_emb", "Qwen2RotaryEmbedding"},
                         {"model.layers.4", "absent"},
                         {"lm_head", "Linear"}};
  EXPECT_EQ(classes_of(*build("qwen2"), paths_of(expected)), expected);
}

TEST(DecoderClasses, AreThoseOfTransformersForLlamaAndGpt2) {
  const Classes llama{{"", "LlamaForCausalLM"}, {"model.layers.0", "LlamaDecoderLayer"}};
  EXPECT_EQ(classes_of(*build("llama"), {"", "model.layers.0"}), llama);
  const Classes gpt2{{"", "GPT2LMHeadModel"},
                     {"transformer", "GPT2Model"},
                     {"transformer.h.0", "GPT2Block"},
                     {"transformer.h.0.attn", "GPT2Attention"},
                     {"transformer.h.0.attn.c_attn", "Conv1D"},
                     {"transformer.h.0.mlp", "GPT2MLP"}};
  EXPECT_EQ(classes_of(*build("gpt2"), {"", "transformer", "transformer.h.0", "transformer.h.0.attn",
                                        "transformer.h.0.attn.c_attn", "transformer.h.0.mlp"}),
            gpt2);
}

TEST(DecoderClasses, AreThoseOfTransformersForMixtralAndQwen2Moe) {
  const Classes mixtral{{"", "MixtralForCausalLM"},
                        {"model.layers.0.mlp", "MixtralSparseMoeBlock"},
                        {"model.layers.0.mlp.gate", "MixtralTopKRouter"},
                        {"model.layers.0.mlp.experts", "MixtralExperts"},
                        {"model.layers.0.mlp.shared_expert", "absent"}};
  EXPECT_EQ(classes_of(*build("mixtral"), paths_of(mixtral)), mixtral);
  const Classes qwen2_moe{{"", "Qwen2MoeForCausalLM"},
                          {"model.layers.0.mlp", "Qwen2MoeSparseMoeBlock"},
                          {"model.layers.0.mlp.gate", "Qwen2MoeTopKRouter"},
                          {"model.layers.0.mlp.experts", "Qwen2MoeExperts"},
                          {"model.layers.0.mlp.shared_expert", "Qwen2MoeMLP"},
                          {"model.layers.0.mlp.shared_expert.up_proj", "Linear"},
                          {"model.layers.0.mlp.shared_expert_gate", "Linear"},
                          {"model.layers.1.mlp", "Qwen2MoeMLP"}};  // mlp_only_layers
  EXPECT_EQ(classes_of(*build("qwen2_moe"), paths_of(qwen2_moe)), qwen2_moe);
}

TEST(DecoderClasses, AreThoseOfTransformersForDeepseekV3) {
  const Classes expected{{"", "DeepseekV3ForCausalLM"},
                         {"model.layers.0", "DeepseekV3DecoderLayer"},
                         {"model.layers.0.self_attn", "DeepseekV3Attention"},
                         {"model.layers.0.self_attn.q_a_layernorm", "RMSNorm"},
                         {"model.layers.0.self_attn.q_proj", "absent"},
                         {"model.layers.0.mlp", "DeepseekV3MLP"},  // first_k_dense_replace
                         {"model.layers.1.mlp", "DeepseekV3MoE"},
                         {"model.layers.1.mlp.gate", "DeepseekV3TopkRouter"},
                         {"model.layers.1.mlp.experts", "DeepseekV3NaiveMoe"},
                         {"model.layers.1.mlp.shared_experts", "DeepseekV3MLP"}};
  EXPECT_EQ(classes_of(*build("deepseek_v3"), paths_of(expected)), expected);
}

// A query is then projected from the hidden states.
TEST(DecoderClasses, OfDeepseekV3WithoutARankOfQueriesHaveOneProjection) {
  DecoderConfig config = load_decoder_config(logits_case("deepseek_v3"));
  config.latent_attention->q_lora_rank = 0;
  const auto model = build_decoder(config);
  const Classes expected{{"model.layers.0.self_attn.q_proj", "Linear"},
                         {"model.layers.0.self_attn.q_a_proj", "absent"},
                         {"model.layers.0.self_attn.q_b_proj", "absent"}};
  EXPECT_EQ(classes_of(*model, paths_of(expected)), expected);
  EXPECT_EQ(saved_shapes(*model).at("model.layers.0.self_attn.q_proj.weight"), (std::vector<std::int64_t>{4 * 24, 64}));
}

TEST(DecoderTies, FollowTheConfig) {
  for (const bool tied : {false, true}) {
    for (const char* name : {"qwen2", "gpt2"}) {
      DecoderConfig config = load_decoder_config(logits_case(name));
      config.tie_word_embeddings = tied;
      const auto model = build_decoder(config);
      EXPECT_EQ(saved_shapes(*model).contains("lm_head.weight"), !tied) << name;
      EXPECT_EQ(model->find("lm_head")->type_name(), "Linear");
    }
  }
}

TEST(DecoderBiases, OfLlamaFollowTheConfig) {
  DecoderConfig config = load_decoder_config(logits_case("llama"));
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = true;
  const Shapes shapes = saved_shapes(*build_decoder(config));
  const Shapes plain = saved_shapes(*build("llama"));
  EXPECT_EQ(shapes.size(), plain.size() + 4 * 7);  // four layers with q, k, v, o, gate, up, down
  EXPECT_EQ(shapes.at("model.layers.0.mlp.down_proj.bias"), std::vector<std::int64_t>{64});
}

// std of a projection back into the residual stream: 0.05 / sqrt(2 * 4 layers) = 0.0177; 64 * 64 draws, so the estimate
// is within 1 % * 3.3 standard deviations (1 / sqrt(2 * 4096) = 1.1 % each).
TEST(DecoderInit, Gpt2sResidualProjectionsStartSmallerByTheNumberOfLayers) {
  const test::TestRank rank;
  const auto model = build("gpt2");
  nn::materialize(*model);
  nn::init_weights(*model, 1);
  std::map<std::string, double> std;
  for (const auto& [path, tensor] : model->named_parameters()) {
    double sum = 0;
    for (const double value : tensor.to_vector<double>()) sum += value * value;
    std[path] = std::sqrt(sum / static_cast<double>(tensor.numel()));
  }
  EXPECT_NEAR(std.at("transformer.h.0.attn.c_proj.weight") / (0.05 / std::sqrt(8.0)), 1, 0.04);
  EXPECT_NEAR(std.at("transformer.h.0.attn.c_attn.weight") / 0.05, 1, 0.04);
}

}  // namespace
}  // namespace loom::models
