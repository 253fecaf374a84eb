// Promise: a model's shape is read from config.json or YAML completely and correctly, or refused with file, key and
//          value.
#include "models/decoder/decoder_config.h"

#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "models/decoder/decoder.h"
#include "tests/support/files.h"

namespace loom::models {
namespace {

const std::filesystem::path kLogits = std::filesystem::path(LOOM_SOURCE_DIR) / "tests/reference/logits";

// A valid Qwen2 config.json without closing brace; tests add or change keys (each beginning with a comma).
const std::string kQwen2 = R"({"model_type": "qwen2", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 172,
  "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256)";
const std::string kGpt2 =
    R"({"model_type": "gpt2", "vocab_size": 256, "n_embd": 64, "n_head": 4, "n_layer": 4, "n_positions": 128)";

std::string changed(const std::string& base, const std::string& keys) {
  auto json = nlohmann::ordered_json::parse(base + "}");
  if (!keys.empty()) json.update(nlohmann::ordered_json::parse("{" + keys.substr(1) + "}"));
  return json.dump();
}
DecoderConfig qwen2_with(const std::string& keys) { return parse_decoder_json(changed(kQwen2, keys), "config.json"); }

std::string error_of(const std::function<void()>& body) { return test::message_of<ConfigError>(body); }
std::string qwen2_error(const std::string& keys) {
  return error_of([&] { qwen2_with(keys); });
}
std::string gpt2_error(const std::string& keys) {
  return error_of([&] { parse_decoder_json(changed(kGpt2, keys), "config.json"); });
}
std::string yaml_error(const std::string& text) {
  return error_of([&] { parse_decoder_yaml(text, "tiny.yaml"); });
}

const std::string kYaml = R"(model_type: qwen2
vocab_size: 256
hidden_size: 64
intermediate_size: 172
num_hidden_layers: 4
num_attention_heads: 4
num_key_value_heads: 2
max_position_embeddings: 256
)";

TEST(DecoderConfig, ReadsTheConfigOfQwen2) {
  const DecoderConfig config = load_decoder_config(kLogits / "qwen2");
  const DecoderConfig expected{.family = DecoderFamily::kQwen2,
                               .vocab_size = 256,
                               .hidden_size = 64,
                               .intermediate_size = 172,
                               .num_hidden_layers = 4,
                               .num_attention_heads = 4,
                               .num_key_value_heads = 2,
                               .head_dim = 16,  // 64 / 4
                               .max_position_embeddings = 256,
                               .norm_eps = 1e-6,
                               .rope_theta = 1e6,
                               .initializer_range = 0.05,
                               .qkv_bias = true,
                               .attention_output_bias = false,
                               .mlp_bias = false,
                               .tie_word_embeddings = false,
                               .bos_token_id = 0,
                               .eos_token_ids = {1},
                               .pad_token_id = {}};
  EXPECT_TRUE(config == expected);
}

TEST(DecoderConfig, ReadsTheConfigOfLlama) {
  const DecoderConfig config = load_decoder_config(kLogits / "llama" / "config.json");
  EXPECT_EQ(config.family, DecoderFamily::kLlama);
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_FALSE(config.attention_output_bias);
}

TEST(DecoderConfig, ReadsTheConfigOfGpt2UnderItsOwnNames) {
  const DecoderConfig config = load_decoder_config(kLogits / "gpt2");
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.intermediate_size, 256);  // n_inner is null: 4 * 64
  EXPECT_EQ(config.num_key_value_heads, 4);
  EXPECT_EQ(config.max_position_embeddings, 128);
  EXPECT_EQ(config.norm_eps, 1e-5);
  EXPECT_TRUE(config.tie_word_embeddings);
}

TEST(DecoderConfig, ReadsTheDropoutOfGpt2) {
  const DecoderConfig config =
      parse_decoder_json(changed(kGpt2, R"(, "resid_pdrop": 0.2, "embd_pdrop": 0.0)"), "config.json");
  EXPECT_EQ(config.residual_dropout, 0.2);
  EXPECT_EQ(config.embedding_dropout, 0);
  EXPECT_EQ(config.attention_dropout, 0.1);  // the default of transformers' GPT2Config
  EXPECT_EQ(nlohmann::json::parse(to_json(config))["resid_pdrop"], 0.2);
}

TEST(DecoderConfig, ReadsTheRotaryBaseInBothSpellings) {
  EXPECT_EQ(qwen2_with("").rope_theta, 10000.0);
  EXPECT_EQ(qwen2_with(R"(, "rope_theta": 500000.0, "rope_scaling": null)").rope_theta, 5e5);
  EXPECT_EQ(qwen2_with(R"(, "rope_parameters": {"rope_theta": 500000, "rope_type": "default"})").rope_theta, 5e5);
}

TEST(DecoderConfig, RefusesTwoDifferentRotaryBases) {
  EXPECT_EQ(qwen2_error(R"(, "rope_theta": 10000.0, "rope_parameters": {"rope_theta": 1000000.0})"),
            "config.json: rope_parameters.rope_theta is 1000000.0; the file also says 10000");
}

TEST(DecoderConfig, NamesTheKnownModelTypesAndTheNearest) {
  EXPECT_EQ(
      error_of([] { parse_decoder_json(R"({"model_type": "quen2"})", "config.json"); }),
      "config.json: model_type is \"quen2\"; known are qwen2, llama, qwen3, qwen3_moe, qwen2_moe, mixtral, deepseek_v3, gpt2; "
      "did you mean 'qwen2'?");
  EXPECT_EQ(error_of([] { parse_decoder_json(R"({"model_type": "mamba"})", "config.json"); }),
            "config.json: model_type is \"mamba\"; known are qwen2, llama, qwen3, qwen3_moe, qwen2_moe, mixtral, "
            "deepseek_v3, gpt2");
}

TEST(DecoderConfig, NamesAMissingKey) {
  EXPECT_EQ(error_of([] { parse_decoder_json("{}", "some/config.json"); }), "some/config.json: model_type is missing");
  EXPECT_EQ(error_of([] { parse_decoder_json(R"({"model_type": "gpt2", "vocab_size": 9})", "config.json"); }),
            "config.json: n_embd is missing");
}

TEST(DecoderConfig, RefusesSizesThatDoNotFitTogether) {
  EXPECT_EQ(qwen2_error(R"(, "hidden_size": 65)"),
            "config.json: hidden_size is 65; it must be a multiple of num_attention_heads (4)");
  EXPECT_EQ(qwen2_error(R"(, "num_key_value_heads": 3)"),
            "config.json: num_attention_heads is 4; it must be a multiple of num_key_value_heads (3)");
  EXPECT_EQ(qwen2_error(R"(, "head_dim": 15)"),
            "config.json: head_dim is 15; rotary embeddings need an even head_dim, not 15");
  EXPECT_EQ(qwen2_error(R"(, "num_hidden_layers": 0)"), "config.json: num_hidden_layers is 0; it must be at least 1");
  EXPECT_EQ(gpt2_error(R"(, "n_head": 5)"), "config.json: n_embd is 64; it must be a multiple of n_head (5)");
}

TEST(DecoderConfig, RefusesValuesOfTheWrongKind) {
  EXPECT_EQ(qwen2_error(R"(, "vocab_size": "256")"), "config.json: vocab_size is \"256\"; a whole number is expected");
  EXPECT_EQ(qwen2_error(R"(, "vocab_size": 256.5)"), "config.json: vocab_size is 256.5; a whole number is expected");
  EXPECT_EQ(qwen2_error(R"(, "rms_norm_eps": 0)"), "config.json: rms_norm_eps is 0; it must be greater than 0");
  EXPECT_EQ(error_of([] { parse_decoder_json("{\"a\": ", "config.json"); }),
            "config.json: not valid JSON (at byte 7 of 6)");
}

TEST(DecoderConfig, RefusesWhatWouldChangeTheArithmetic) {
  EXPECT_EQ(qwen2_error(R"(, "attention_dropout": 0.1)"),
            "config.json: attention_dropout is 0.1; dropout is not built, set it to 0");
  EXPECT_EQ(gpt2_error(R"(, "resid_pdrop": 1)"), "config.json: resid_pdrop is 1; it must be at least 0 and below 1");
  EXPECT_EQ(gpt2_error(R"(, "attn_pdrop": -0.1)"),
            "config.json: attn_pdrop is -0.1; it must be at least 0 and below 1");
  EXPECT_EQ(qwen2_error(R"(, "use_sliding_window": true, "sliding_window": 4096)"),
            "config.json: sliding_window is 4096; sliding windows are not built, set use_sliding_window to false");
  EXPECT_EQ(qwen2_error(R"(, "layer_types": ["full_attention", "sliding_attention"])"),
            "config.json: layer_types is [\"full_attention\",\"sliding_attention\"]; only \"full_attention\" is built");
  EXPECT_EQ(qwen2_error(R"(, "hidden_act": "gelu")"), "config.json: hidden_act is \"gelu\"; only \"silu\" is built");
  EXPECT_EQ(gpt2_error(R"(, "activation_function": "relu")"),
            "config.json: activation_function is \"relu\"; only \"gelu_new\" is built");
  EXPECT_EQ(gpt2_error(R"(, "scale_attn_weights": false)"),
            "config.json: scale_attn_weights is false; only true is built");
  EXPECT_EQ(
      qwen2_error(R"(, "quantization_config": {"bits": 4})"),
      "config.json: quantization_config is {\"bits\":4}; quantised weights are not built, use the unquantised model");
}

TEST(DecoderConfig, ReadsOverHarmlessKeysOfConfigJson) {
  const DecoderConfig config = qwen2_with(
      R"(, "transformers_version": "5.17.0", "use_cache": true, "sliding_window": 32768, "use_sliding_window": false)");
  EXPECT_TRUE(config == qwen2_with(""));
}

TEST(DecoderConfig, YamlAndJsonWithTheSameKeysGiveTheSameConfig) {
  EXPECT_TRUE(parse_decoder_yaml(kYaml, "tiny.yaml") == qwen2_with(""));
  EXPECT_TRUE(parse_decoder_yaml(kYaml + "rms_norm_eps: 1.0e-5\nrope_parameters: {rope_theta: 1e6}\n", "tiny.yaml") ==
              qwen2_with(R"(, "rms_norm_eps": 1e-5, "rope_theta": 1e6)"));
}

TEST(DecoderConfig, YamlErrorsNameLineAndColumn) {
  EXPECT_EQ(yaml_error(kYaml + "tie_word_embedings: true\n"),
            "tiny.yaml:9:1: unknown key 'tie_word_embedings'; did you mean 'tie_word_embeddings'?");
  EXPECT_EQ(yaml_error(kYaml + "flavour: sweet\n"), "tiny.yaml:9:1: unknown key 'flavour'");
  EXPECT_EQ(yaml_error(kYaml + "vocab_size: 128\n"), "tiny.yaml:9:1: key 'vocab_size' is given twice");
  EXPECT_EQ(yaml_error(kYaml + "rope_parameters:\n  rope_thet: 1e6\n"),
            "tiny.yaml:10:3: unknown key 'rope_parameters.rope_thet'; did you mean 'rope_parameters.rope_theta'?");
  EXPECT_EQ(yaml_error(kYaml + "head_dim: -16\n"), "tiny.yaml:9:1: head_dim is -16; it must be at least 1");
  EXPECT_EQ(yaml_error("model_type: qwen2\nvocab_sise: 256\n"),
            "tiny.yaml:2:1: unknown key 'vocab_sise'; did you mean 'vocab_size'?");
  EXPECT_EQ(yaml_error("model_type: [qwen2\n"), "tiny.yaml:2:1: not valid YAML (a [ is not closed with ])");
  EXPECT_EQ(yaml_error("- 1\n"), "tiny.yaml: a mapping of keys to values is expected");
}

TEST(DecoderConfig, RefusesSizesThatNoModelHasAtTheirKeyWithTheLargest) {
  const auto with = [](const std::string& from, const std::string& to) {
    std::string text = kYaml;
    return yaml_error(text.replace(text.find(from), from.size(), to));
  };
  EXPECT_EQ(with("vocab_size: 256", "vocab_size: 144115188075855872"),
            "tiny.yaml:2:1: vocab_size is 144115188075855872; it must be at most 2147483647");
  EXPECT_EQ(with("hidden_size: 64", "hidden_size: 2097152"),
            "tiny.yaml:3:1: hidden_size is 2097152; it must be at most 1048576");
  EXPECT_EQ(with("num_hidden_layers: 4", "num_hidden_layers: 1000000000"),
            "tiny.yaml:5:1: num_hidden_layers is 1000000000; it must be at most 4096");
  EXPECT_EQ(with("vocab_size: 256\nhidden_size: 64", "vocab_size: 2147483647\nhidden_size: 1048576"),
            "tiny.yaml:2:1: vocab_size is 2147483647; with hidden_size 1048576 it must be at most 1048576");
  EXPECT_EQ(yaml_error(kYaml + "head_dim: 65536\nnum_key_value_heads: 4\n").substr(0, 14), "tiny.yaml:10:1");
  EXPECT_EQ(gpt2_error(R"(, "n_layer": 5000)"), "config.json: n_layer is 5000; it must be at most 4096");
  EXPECT_EQ(qwen2_error(R"(, "model_type": "qwen3_moe", "num_experts": 65536, "num_experts_per_tok": 2,
                          "moe_intermediate_size": 16777216)"),
            "config.json: num_experts is 65536; with moe_intermediate_size 16777216 and hidden_size 64 it must be at "
            "most 512");
}

TEST(DecoderConfig, RefusesAKeyThatStandsTwice) {
  EXPECT_EQ(error_of([] { parse_decoder_json(kQwen2 + ",\n\"vocab_size\": 512}", "config.json"); }),
            "config.json:3: vocab_size is given again, first at line 1; keep one");
}

TEST(DecoderConfig, IsReadFromConfigJsonAndYamlFilesOnly) {
  EXPECT_EQ(error_of([] { load_decoder_config("model.toml"); }),
            "model.toml: a model is described by a folder with config.json, a .json or a .yaml file");
  EXPECT_THAT(error_of([] { load_decoder_config("nowhere/config.json"); }),
              ::testing::HasSubstr("nowhere/config.json"));
}

TEST(DecoderConfig, WhatIsWrittenReadsBackEqual) {
  std::vector<DecoderConfig> configs{load_decoder_config(kLogits / "qwen2"), load_decoder_config(kLogits / "llama"),
                                     load_decoder_config(kLogits / "gpt2"), qwen2_with("")};
  DecoderConfig llama = configs[1];
  llama.qkv_bias = llama.attention_output_bias = llama.mlp_bias = llama.tie_word_embeddings = true;
  llama.head_dim = 32;  // not 64 / 4
  llama.eos_token_ids = {1, 2};
  llama.pad_token_id = 3;
  llama.rope_theta = 12345.678901234567;
  configs.push_back(llama);
  for (const DecoderConfig& config : configs) {
    EXPECT_TRUE(parse_decoder_json(to_json(config), "config.json") == config) << to_json(config);
  }
}

TEST(DecoderConfig, WritesTheRotaryBaseInBothSpellings) {
  const std::string json = to_json(load_decoder_config(kLogits / "qwen2"));
  EXPECT_THAT(json, ::testing::HasSubstr("\n  \"rope_theta\": 1000000.0,"));
  EXPECT_THAT(json, ::testing::HasSubstr("\"rope_parameters\": {\n    \"rope_theta\": 1000000.0,"));
  EXPECT_THAT(json, ::testing::HasSubstr("\"architectures\": [\n    \"Qwen2ForCausalLM\"\n  ]"));
}

// By hand: embedding and head 2 * 256 * 256; a layer q 256 * 256 + 256, k and v 2 * (128 * 256 + 128), o 256 * 256,
// MLP 3 * 688 * 256, norms 2 * 256; eight layers and the last norm of 256.
TEST(DecoderConfig, TheQuickStartsModelHasBetweenFiveAndSixMillionParameters) {
  const auto model =
      build_decoder(load_decoder_config(std::filesystem::path(LOOM_SOURCE_DIR) / "configs/models/quickstart.yaml"));
  const std::int64_t layer = (65536 + 256) + 2 * (32768 + 128) + 65536 + 3 * 688 * 256 + 2 * 256;
  EXPECT_EQ(model->parameter_count(), 2 * 65536 + 8 * layer + 256);
  EXPECT_GT(model->parameter_count(), 5'000'000);
  EXPECT_LT(model->parameter_count(), 6'000'000);
}

}  // namespace
}  // namespace loom::models
