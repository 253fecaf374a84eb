// Promise: the shape of a vision-language model is read from config.json or YAML completely and correctly, or refused
//          with file, section, key and value.
#include "models/internvl/internvl_config.h"

#include <fmt/format.h>
#include <fstream>
#include <functional>
#include <gmock/gmock.h>
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

// --- OpenGVLab's InternVLChatModel

const std::filesystem::path kChat = std::filesystem::path(LOOM_SOURCE_DIR) / "tests/reference/vision/internvl";

// The reference's config.json with this change.
InternVLConfig chat_with(const std::function<void(nlohmann::ordered_json&)>& change) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(std::ifstream(kChat / "config.json"));
  change(json);
  return parse_internvl_json(json.dump(), "config.json");
}

std::string chat_refused(const std::function<void(nlohmann::ordered_json&)>& change) {
  return test::message_of<ConfigError>([&] { chat_with(change); });
}

TEST(InternVLChatConfig, ReadsTheReferenceFile) {
  const InternVLConfig config = load_internvl_config(kChat);
  const InternVLVisionConfig vision{.hidden_size = 32,
                                    .num_hidden_layers = 2,
                                    .num_attention_heads = 2,
                                    .intermediate_size = 64,
                                    .image_size = 21,
                                    .patch_size = 7,
                                    .layer_scale_init_value = 0.5,
                                    .attention_bias = true,
                                    .use_qk_norm = true};
  EXPECT_TRUE(config.vision == vision);
  EXPECT_EQ(config.text.family, DecoderFamily::kQwen2);
  EXPECT_EQ(config.text.vocab_size, 268);
  const InternVLChatOptions chat{
      .force_image_size = 28, .dynamic_image_size = true, .use_thumbnail = true, .max_dynamic_patch = 4};
  EXPECT_TRUE(config.chat == chat);
  EXPECT_EQ(config.image_token_id, 261);  // the vocabulary's seventh from the end
  EXPECT_EQ(config.image_size(), 28);
  EXPECT_EQ(config.image_tokens(), 4);
  EXPECT_TRUE(is_internvl(kChat));
}

// Shapes of OpenGVLab/InternVL2_5-1B and of the vision model's class, whose keys its files may leave out.
TEST(InternVLChatConfig, HasTheDefaultsOfItsClass) {
  const InternVLConfig config = parse_internvl_json(
      R"({"model_type": "internvl_chat", "ps_version": "v2", "force_image_size": 448, "vision_config": {},
        "llm_config": {"model_type": "qwen2", "vocab_size": 151674, "hidden_size": 896, "intermediate_size": 4864,
        "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
        "max_position_embeddings": 32768}})",
      "config.json");
  EXPECT_EQ(config.image_token_id, 151667);
  EXPECT_EQ(config.image_tokens(), 256);
  const InternVLVisionConfig vision{.hidden_size = 3200,
                                    .num_hidden_layers = 48,
                                    .num_attention_heads = 25,
                                    .intermediate_size = 12800,
                                    .image_size = 224,
                                    .rms_norm = true,
                                    .use_qk_norm = true};
  EXPECT_TRUE(config.vision == vision);
  EXPECT_TRUE(config.chat == InternVLChatOptions{.force_image_size = 448});
}

TEST(InternVLChatConfig, IsReadBackEqualFromWhatItWrites) {
  InternVLConfig config = load_internvl_config(kChat);
  EXPECT_TRUE(parse_internvl_json(to_json(config), "written") == config);
  config.vision.rms_norm = config.vision.freeze = config.freeze_text = config.text.tie_word_embeddings = true;
  config.vision.use_qk_norm = config.vision.attention_bias = false;
  config.image_token_id = 5;
  config.chat = InternVLChatOptions{.force_image_size = 28, .prompt_template = "Hermes-2"};
  EXPECT_TRUE(parse_internvl_json(to_json(config), "written") == config);
}

TEST(InternVLChatConfig, RefusesWhatIsNotBuiltOrDoesNotFit) {
  const auto set = [](const char* key, const nlohmann::ordered_json& value) {
    return chat_refused([&](nlohmann::ordered_json& json) { json[key] = value; });
  };
  EXPECT_EQ(set("ps_version", "v1"), R"(config.json: ps_version is "v1"; only "v2" is built)");
  EXPECT_EQ(set("ps_version", nullptr), R"(config.json: ps_version is null; only "v2" is built)");
  EXPECT_EQ(set("select_layer", -2), "config.json: select_layer is -2; only -1, the last layer, is built");
  EXPECT_EQ(set("pad2square", true), "config.json: pad2square is true; only false is built");
  EXPECT_EQ(set("image_fold", 2), "config.json: image_fold is 2; it is not built; leave it out");
  EXPECT_EQ(set("use_llm_lora", 16),
            "config.json: use_llm_lora is 16; adapters inside the model are not read; merge them into its weights, and "
            "write 0");
  EXPECT_EQ(set("force_image_size", 30),
            "config.json: force_image_size is 30; it must be a multiple of vision_config.patch_size (7)");
  EXPECT_EQ(set("force_image_size", nullptr),
            "config.json: downsample_ratio is 0.5; the 3 x 3 patches of an image cannot be joined in squares of 2");
  EXPECT_THAT(
      set("downsample_ratio", 1e-300),
      ::testing::StartsWith("config.json: downsample_ratio is 1e-300; the 4 x 4 patches of an image cannot be"));
  EXPECT_EQ(set("min_dynamic_patch", 5), "config.json: max_dynamic_patch is 4; use at least min_dynamic_patch, 5");
}

TEST(InternVLChatConfig, RefusesValuesOfItsSections) {
  const auto vision = [](const char* key, const nlohmann::ordered_json& value) {
    return chat_refused([&](nlohmann::ordered_json& json) { json["vision_config"][key] = value; });
  };
  EXPECT_EQ(vision("drop_path_rate", 1.5),
            "config.json: vision_config.drop_path_rate is 1.5; a share from 0 to below 1 is expected");
  EXPECT_EQ(vision("dropout", 0.1), "config.json: vision_config.dropout is 0.1; dropout is not built, set it to 0");
  EXPECT_EQ(vision("layer_norm_eps", 1e-5),
            "config.json: vision_config.layer_norm_eps is 1e-05; with qk_normalization only 1e-6 is built");
  EXPECT_EQ(vision("model_type", "siglip"),
            R"(config.json: vision_config.model_type is "siglip"; only "intern_vit_6b" is built)");
  EXPECT_THAT(chat_refused([](nlohmann::ordered_json& json) { json["llm_config"]["model_type"] = "internlm2"; }),
              ::testing::StartsWith(R"(config.json: llm_config.model_type is "internlm2"; )"));
  EXPECT_EQ(chat_refused([](nlohmann::ordered_json& json) { json["llm_config"]["vocab_size"] = 3; }),
            "config.json: image_token_id is absent; ids go from 0 to 2 (llm_config.vocab_size is 3)");
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
