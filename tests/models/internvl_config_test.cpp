// Promise: the shape of a vision-language model is read from config.json or YAML completely and correctly, or refused
//          with file, section, key and value.
#include "models/internvl/internvl_config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::models {
namespace {

const std::filesystem::path kCase = std::filesystem::path(LOOM_SOURCE_DIR) / "tests/reference/training/internvl_w2";

const std::string kText = R"({"model_type": "qwen2", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 172,
  "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256})";

// A config whose vision section and top level have these keys (each beginning with a comma) more, or otherwise.
InternVLConfig with(const std::string& vision, const std::string& top = "", const std::string& text = kText) {
  const std::string all = fmt::format(
      R"({{"model_type": "internvl", "image_token_id": 250, "vision_config": {{"model_type": "internvl_vision",
        "hidden_size": 48, "num_attention_heads": 4, "image_size": 32, "patch_size": 8{}}}, "text_config": {}{}}})",
      vision, text, top);
  // Keys that are given again here replace those above.
  return parse_internvl_json(nlohmann::ordered_json::parse(all).dump(), "config.json");
}

std::string refused(const std::string& vision, const std::string& top = "", const std::string& text = kText) {
  return test::message_of<ConfigError>([&] { with(vision, top, text); });
}

TEST(InternVLConfig, ReadsTheReferenceFile) {
  const InternVLConfig config = load_internvl_config(kCase);
  const InternVLVisionConfig vision{.hidden_size = 48,
                                    .num_hidden_layers = 2,
                                    .num_attention_heads = 4,
                                    .intermediate_size = 96,
                                    .image_size = 32,
                                    .patch_size = 8,
                                    .num_channels = 3,
                                    .layer_norm_eps = 1e-6,
                                    .layer_scale_init_value = 0.5,
                                    .initializer_range = 0.05,
                                    .rms_norm = false,
                                    .attention_bias = true,
                                    .use_qk_norm = false,
                                    .use_absolute_position_embeddings = true,
                                    .use_mean_pooling = true,
                                    .freeze = false};
  EXPECT_TRUE(config.vision == vision);
  EXPECT_EQ(config.text.family, DecoderFamily::kQwen2);
  EXPECT_EQ(config.text.hidden_size, 64);
  EXPECT_FALSE(config.text.tie_word_embeddings);
  EXPECT_EQ(config.image_token_id, 250);
  EXPECT_EQ(config.downsample_factor, 2);
  EXPECT_EQ(config.image_tokens(), 4);  // 4 x 4 patches, 2 x 2 of them a token
  EXPECT_TRUE(is_internvl(kCase));
  EXPECT_FALSE(is_internvl(kCase.parent_path() / "qwen2_w4_fp32"));
}

TEST(InternVLConfig, HasTransformersDefaultsForWhatTheFileLeavesOut) {
  const InternVLConfig config = parse_internvl_json(
      R"({"model_type": "internvl", "vision_config": {}, "text_config": {"model_type": "qwen2", "vocab_size": 151674,
        "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "max_position_embeddings": 32768}})",
      "config.json");
  EXPECT_TRUE(config.vision == InternVLVisionConfig{});
  EXPECT_EQ(config.image_token_id, 151667);
  EXPECT_EQ(config.image_tokens(), 256);  // 448 / 14 = 32 patches a side, 16 tokens a side
}

TEST(InternVLConfig, IsReadBackEqualFromWhatItWrites) {
  InternVLConfig config = load_internvl_config(kCase);
  EXPECT_TRUE(parse_internvl_json(to_json(config), "written") == config);
  config.vision.rms_norm = config.vision.use_qk_norm = config.vision.freeze = config.freeze_text = true;
  config.vision.use_mean_pooling = config.vision.use_absolute_position_embeddings = false;
  config.text.tie_word_embeddings = true;
  config.downsample_factor = 4;
  EXPECT_TRUE(parse_internvl_json(to_json(config), "written") == config);
}

TEST(InternVLConfig, TakesTheTieBesideTheSectionsBeforeTheDecoders) {
  const std::string tied = kText.substr(0, kText.size() - 1) + R"(, "tie_word_embeddings": true})";
  EXPECT_TRUE(with("", "", tied).text.tie_word_embeddings);
  EXPECT_FALSE(with("", R"(, "tie_word_embeddings": false)", tied).text.tie_word_embeddings);
  EXPECT_TRUE(with("", R"(, "tie_word_embeddings": true)").text.tie_word_embeddings);
}

TEST(InternVLConfig, TakesAnyRotaryDecoder) {
  const std::string qwen3 = R"({"model_type": "qwen3", "head_dim": 16,)" + kText.substr(kText.find("\"vocab_size\""));
  EXPECT_EQ(with("", "", qwen3).text.family, DecoderFamily::kQwen3);
}

TEST(InternVLConfig, RefusesWhatIsNotBuiltOrDoesNotFit) {
  EXPECT_EQ(refused(R"(, "image_size": [32, 64])"),
            "config.json: vision_config.image_size is [32,64]; only squares are built");
  EXPECT_EQ(refused(R"(, "patch_size": 5)"),
            "config.json: vision_config.image_size is 32; it must be a multiple of patch_size (5)");
  EXPECT_EQ(refused(R"(, "hidden_size": 50)"),
            "config.json: vision_config.hidden_size is 50; it must be a multiple of num_attention_heads (4)");
  EXPECT_EQ(refused(R"(, "use_mask_token": true)"),
            "config.json: vision_config.use_mask_token is true; only false is built");
  EXPECT_EQ(refused(R"(, "attention_dropout": 0.1)"),
            "config.json: vision_config.attention_dropout is 0.1; dropout is not built, set it to 0");
  EXPECT_EQ(refused(R"(, "hidden_act": "silu")"),
            R"(config.json: vision_config.hidden_act is "silu"; only "gelu" is built)");
  EXPECT_EQ(refused(R"(, "norm_type": "group")"),
            R"(config.json: vision_config.norm_type is "group"; known are layer_norm, rms_norm)");
  EXPECT_EQ(refused(R"(, "model_type": "clip")"),
            R"(config.json: vision_config.model_type is "clip"; only "internvl_vision" is built)");
  EXPECT_EQ(refused("", R"(, "downsample_ratio": 0.3)"),
            "config.json: downsample_ratio is 0.3; only 1 divided by a whole number is built");
  EXPECT_EQ(refused(R"(, "patch_size": 32)"),
            "config.json: downsample_ratio is absent; the 1 x 1 patches of an image cannot be joined in squares of 2");
  EXPECT_EQ(refused("", R"(, "image_token_id": 256)"),
            "config.json: image_token_id is 256; ids go from 0 to 255 (text_config.vocab_size is 256)");
  EXPECT_EQ(refused("", R"(, "vision_feature_layer": -2)"),
            "config.json: vision_feature_layer is -2; only -1, the last layer, is built");
  EXPECT_EQ(refused("", R"(, "vision_feature_select_strategy": "full")"),
            R"(config.json: vision_feature_select_strategy is "full"; only "default" is built)");
  EXPECT_EQ(refused("", "", R"({"model_type": "gpt2", "vocab_size": 256, "n_embd": 64, "n_head": 4, "n_layer": 4,
              "n_positions": 128})"),
            R"(config.json: text_config.model_type is "gpt2"; a decoder with rotary positions is expected)");
}

TEST(InternVLConfig, NamesAMissingSectionAndAnotherModelsFile) {
  const auto message = [](const std::string& text) {
    return test::message_of<ConfigError>([&] { parse_internvl_json(text, "config.json"); });
  };
  EXPECT_EQ(message(R"({"model_type": "internvl", "vision_config": {}})"),
            "config.json: text_config is absent; the model needs this section");
  EXPECT_EQ(message(R"({"model_type": "qwen2"})"), R"(config.json: model_type is "qwen2"; internvl is expected)");
}

TEST(InternVLConfig, RefusesUnknownKeysOfAYamlInEverySection) {
  const auto message = [](const std::string& vision, const std::string& top) {
    const std::string text = "model_type: internvl\nimage_token_id: 250\n" + top +
                             "vision_config:\n  hidden_size: 48\n  num_attention_heads: 4\n  image_size: 32\n"
                             "  patch_size: 8\n" +
                             vision +
                             "text_config:\n  model_type: qwen2\n  vocab_size: 256\n  hidden_size: 64\n"
                             "  intermediate_size: 172\n  num_hidden_layers: 3\n  num_attention_heads: 4\n"
                             "  num_key_value_heads: 2\n  max_position_embeddings: 256\n  freeze: true\n";
    try {
      return std::to_string(parse_internvl_yaml(text, "vlm.yaml").freeze_text);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(message("", ""), "1");
  EXPECT_EQ(message("  freze: true\n", ""),
            "vlm.yaml:8:3: unknown key 'vision_config.freze'; did you mean 'vision_config.freeze'?");
  EXPECT_EQ(message("", "image_tokn_id: 3\n"),
            "vlm.yaml:3:1: unknown key 'image_tokn_id'; did you mean 'image_token_id'?");
}

}  // namespace
}  // namespace loom::models
