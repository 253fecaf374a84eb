// Promise: the shapes of Qwen2-VL, Qwen2.5-VL and Qwen3-VL are read from config.json, old or new, or YAML completely
//          and correctly, or refused with file, section, key and value; what is written is read back equal.
#include "models/qwen_vl/qwen_vl_config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "models/hub/config_reader.h"
#include "models/hub/text_config.h"
#include "models/qwen_vl/qwen_vl.h"
#include "tests/support/files.h"

namespace loom::models {
namespace {

using ::testing::ElementsAre;
using Json = nlohmann::ordered_json;

const std::filesystem::path kReferences = std::filesystem::path(LOOM_SOURCE_DIR) / "tests/reference";

QwenVlConfig parsed(std::string_view text) { return read_qwen_vl_config(ConfigReader::from_json(text, "config.json")); }

Json reference(const char* folder) {
  return Json::parse(test::read_file(kReferences / "vision" / folder / "config.json"));
}

// The reference with these keys otherwise; null takes one away.
QwenVlConfig with(const char* folder, const std::string& patch) {
  Json json = reference(folder);
  json.merge_patch(Json::parse(patch));
  return parsed(json.dump());
}

std::string refused(const char* folder, const std::string& patch) {
  return test::message_of<ConfigError>([&] { with(folder, patch); });
}

// --- What a file says

TEST(QwenVlConfig, ReadsTheReferenceFileOfQwen2) {
  const QwenVlConfig config = load_qwen_vl_config(kReferences / "vision/qwen2_vl");
  const QwenVisionConfig vision{.version = QwenVlVersion::k2,
                                .depth = 2,
                                .hidden_size = 32,
                                .num_heads = 2,
                                .intermediate_size = 96,  // mlp_ratio 3
                                .out_hidden_size = 64};
  EXPECT_TRUE(config.vision == vision);
  EXPECT_EQ(config.version, QwenVlVersion::k2);
  EXPECT_EQ(config.text.family, DecoderFamily::kQwen2Vl);
  EXPECT_TRUE(config.text.qkv_bias);
  EXPECT_FALSE(config.text.qk_norm);
  EXPECT_EQ(config.text.hidden_size, 64);
  EXPECT_EQ(config.text.head_dim, 16);
  EXPECT_EQ(config.text.rope_theta, 1e6);
  EXPECT_EQ(config.text.pad_token_id, 0);
  EXPECT_THAT(config.text.rope_scaling.mrope_section, ElementsAre(2, 3, 3));
  EXPECT_FALSE(config.text.rope_scaling.mrope_interleaved);
  EXPECT_EQ(config.image_token_id, 252);
  EXPECT_EQ(config.video_token_id, 253);
  EXPECT_EQ(config.vision_start_token_id, 250);
  EXPECT_EQ(config.vision_end_token_id, 251);
  EXPECT_FALSE(config.vision.freeze || config.freeze_text || config.text.tie_word_embeddings);
}

TEST(QwenVlConfig, ReadsTheReferenceFileOfQwen25) {
  const QwenVlConfig config = load_qwen_vl_config(kReferences / "vision/qwen2_5_vl");
  const QwenVisionConfig vision{.version = QwenVlVersion::k2_5,
                                .depth = 2,
                                .hidden_size = 32,
                                .num_heads = 2,
                                .intermediate_size = 48,
                                .out_hidden_size = 64,
                                .window_size = 56,
                                .fullatt_block_indexes = {1},
                                .tokens_per_second = 2};
  EXPECT_TRUE(config.vision == vision);
  EXPECT_EQ(config.version, QwenVlVersion::k2_5);
  EXPECT_EQ(config.text.family, DecoderFamily::kQwen2_5Vl);
  EXPECT_THAT(config.text.rope_scaling.mrope_section, ElementsAre(2, 3, 3));
}

TEST(QwenVlConfig, ReadsTheReferenceFileOfQwen3) {
  const QwenVlConfig config = load_qwen_vl_config(kReferences / "vision/qwen3_vl");
  const QwenVisionConfig vision{.version = QwenVlVersion::k3,
                                .depth = 3,
                                .hidden_size = 32,
                                .num_heads = 2,
                                .intermediate_size = 96,
                                .out_hidden_size = 64,
                                .deepstack_visual_indexes = {0, 2},
                                .num_position_embeddings = 64};
  EXPECT_TRUE(config.vision == vision);
  EXPECT_EQ(config.version, QwenVlVersion::k3);
  EXPECT_EQ(config.text.family, DecoderFamily::kQwen3Vl);
  EXPECT_TRUE(config.text.qk_norm);
  EXPECT_FALSE(config.text.qkv_bias);
  EXPECT_THAT(config.text.rope_scaling.mrope_section, ElementsAre(4, 2, 2));
  EXPECT_TRUE(config.text.rope_scaling.mrope_interleaved);
}

TEST(QwenVlConfig, KnowsItsFilesAndTheirText) {
  for (const char* folder : {"vision/qwen2_vl", "vision/qwen2_5_vl", "vision/qwen3_vl"}) {
    EXPECT_TRUE(is_qwen_vl(kReferences / folder)) << folder;
    EXPECT_TRUE(load_text_config(kReferences / folder) == load_qwen_vl_config(kReferences / folder).text) << folder;
  }
  EXPECT_FALSE(is_qwen_vl(kReferences / "training/internvl_w2"));
}

TEST(QwenVlConfig, HasTransformersDefaultsForWhatTheFileLeavesOut) {
  const auto vision = [](const char* folder, const char* depth_and_width) {
    Json json = reference(folder);
    json["vision_config"] = Json::parse(depth_and_width);
    return parsed(json.dump()).vision;
  };
  EXPECT_TRUE(vision("qwen2_vl", R"({"hidden_size": 64})") == (QwenVisionConfig{.out_hidden_size = 64}));
  EXPECT_TRUE(vision("qwen2_5_vl", R"({"out_hidden_size": 64})") ==
              (QwenVisionConfig{.version = QwenVlVersion::k2_5,
                                .hidden_size = 3584,
                                .intermediate_size = 3420,
                                .out_hidden_size = 64,
                                .window_size = 112,
                                .fullatt_block_indexes = {7, 15, 23, 31},
                                .tokens_per_second = 4}));
  EXPECT_TRUE(vision("qwen3_vl", R"({"out_hidden_size": 64})") ==
              (QwenVisionConfig{.version = QwenVlVersion::k3,
                                .depth = 27,
                                .hidden_size = 1152,
                                .intermediate_size = 4304,
                                .out_hidden_size = 64,
                                .patch_size = 16,
                                .deepstack_visual_indexes = {8, 16, 24},
                                .num_position_embeddings = 2304}));
}

TEST(QwenVlConfig, ReadsThePixelsChannelsUnderBothNames) {
  EXPECT_EQ(with("qwen2_vl", R"({"vision_config": {"in_channels": null, "in_chans": 4}})").vision.in_channels, 4);
  EXPECT_EQ(with("qwen2_vl", R"({"vision_config": {"patch_size": null, "spatial_patch_size": 7}})").vision.patch_size,
            7);
}

TEST(QwenVlConfig, TakesTheTieBesideTheSectionsBeforeTheTexts) {
  const auto tied = [](const char* patch) { return with("qwen3_vl", patch).text.tie_word_embeddings; };
  EXPECT_TRUE(tied(R"({"tie_word_embeddings": true})"));
  EXPECT_FALSE(tied(R"({"tie_word_embeddings": false, "text_config": {"tie_word_embeddings": true}})"));
  EXPECT_TRUE(tied(R"({"tie_word_embeddings": null, "text_config": {"tie_word_embeddings": true}})"));
}

class EveryVersion : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(QwenVlConfig, EveryVersion, ::testing::Values("qwen2_vl", "qwen2_5_vl", "qwen3_vl"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(EveryVersion, IsReadBackEqualFromWhatItWrites) {
  QwenVlConfig config = load_qwen_vl_config(kReferences / "vision" / GetParam());
  EXPECT_TRUE(parsed(to_json(config)) == config);
  config.vision.freeze = config.freeze_text = config.text.tie_word_embeddings = true;
  config.vision.intermediate_size = 90;  // Qwen2-VL: mlp_ratio 2.8125
  config.vision.initializer_range = 0.5;
  config.vision.in_channels = 4;
  config.vision.spatial_merge_size = 1;
  config.image_token_id = 3;
  config.video_token_id = 4;
  config.vision_start_token_id = 5;
  config.vision_end_token_id = 6;
  if (config.version == QwenVlVersion::k2_5) {
    config.vision.fullatt_block_indexes = {};
    config.vision.window_size = 112;
    config.vision.tokens_per_second = 25;
  }
  if (config.version == QwenVlVersion::k3) {
    config.vision.deepstack_visual_indexes = {};
    config.vision.num_position_embeddings = 9;
  }
  EXPECT_TRUE(parsed(to_json(config)) == config);
}

TEST_P(EveryVersion, NamesItsClassesInWhatItWrites) {
  const QwenVlConfig config = load_qwen_vl_config(kReferences / "vision" / GetParam());
  const Json written = Json::parse(to_json(config)), given = reference(GetParam());
  EXPECT_EQ(written.at("architectures"), given.at("architectures"));
  for (const char* key : {"/model_type", "/vision_config/model_type", "/text_config/model_type"}) {
    EXPECT_EQ(written.at(Json::json_pointer(key)), given.at(Json::json_pointer(key))) << key;
  }
}

// transformers before 4.52: the text's keys at top level, with rope_scaling of type mrope.
TEST_P(EveryVersion, ReadsOldFilesWithTheTextsKeysBesideTheTower) {
  Json json = reference(GetParam());
  const Json text = json.at("text_config");
  json.erase("text_config");
  for (const auto& [key, value] : text.items()) {
    if (key != "model_type" && key != "rope_parameters") json[key] = value;
  }
  Json scaling = text.at("rope_parameters");
  json["rope_theta"] = scaling.at("rope_theta");
  scaling.erase("rope_theta");
  scaling.erase("rope_type");
  scaling["type"] = "mrope";
  json["rope_scaling"] = scaling;
  EXPECT_TRUE(parsed(json.dump()) == load_qwen_vl_config(kReferences / "vision" / GetParam()));
}

// --- The released models

struct Released {
  const char* name;
  const char* text;
  const char* vision;
  bool is_2_5;
  std::int64_t hidden, layers, heads, kv_heads, intermediate, vocab;
  bool tied;
  std::int64_t vision_intermediate;
  std::int64_t parameters;  // by the published files' headers
};
constexpr const char* kVision25 = R"("depth": 32, "hidden_act": "silu", "hidden_size": 1280, "in_chans": 3,
  "num_heads": 16, "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14, "window_size": 112,
  "fullatt_block_indexes": [7, 15, 23, 31], "tokens_per_second": 2, "temporal_patch_size": 2)";
constexpr const char* kVision2 = R"("depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "in_chans": 3,
  "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14, "temporal_patch_size": 2)";

const Released kReleased[] = {
    {"Qwen2_VL_2B",
     R"("hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12, "num_hidden_layers": 28,
        "num_key_value_heads": 2, "tie_word_embeddings": true, "vocab_size": 151936)",
     R"("hidden_size": 1536)", false, 1536, 28, 12, 2, 8960, 151936, true, 5120, 2'208'985'600},
    {"Qwen2_VL_7B",
     R"("hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_hidden_layers": 28,
        "num_key_value_heads": 4, "tie_word_embeddings": false, "vocab_size": 152064)",
     R"("hidden_size": 3584)", false, 3584, 28, 28, 4, 18944, 152064, false, 5120, 8'291'375'616},
    {"Qwen2_VL_72B",
     R"("hidden_size": 8192, "intermediate_size": 29568, "num_attention_heads": 64, "num_hidden_layers": 80,
        "num_key_value_heads": 8, "tie_word_embeddings": false, "vocab_size": 152064)",
     R"("hidden_size": 8192)", false, 8192, 80, 64, 8, 29568, 152064, false, 5120, 73'405'560'320},
    {"Qwen2_5_VL_3B",
     R"("hidden_size": 2048, "intermediate_size": 11008, "num_attention_heads": 16, "num_hidden_layers": 36,
        "num_key_value_heads": 2, "tie_word_embeddings": true, "vocab_size": 151936)",
     R"("out_hidden_size": 2048, "intermediate_size": 3420)", true, 2048, 36, 16, 2, 11008, 151936, true, 3420,
     3'754'622'976},
    {"Qwen2_5_VL_7B",
     R"("hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_hidden_layers": 28,
        "num_key_value_heads": 4, "tie_word_embeddings": false, "vocab_size": 152064)",
     R"("out_hidden_size": 3584, "intermediate_size": 3420)", true, 3584, 28, 28, 4, 18944, 152064, false, 3420,
     8'292'166'656},
    {"Qwen2_5_VL_32B",
     R"("hidden_size": 5120, "intermediate_size": 27648, "num_attention_heads": 40, "num_hidden_layers": 64,
        "num_key_value_heads": 8, "tie_word_embeddings": false, "vocab_size": 152064)",
     R"("out_hidden_size": 5120, "intermediate_size": 3456)", true, 5120, 64, 40, 8, 27648, 152064, false, 3456,
     33'452'718'336},
    {"Qwen2_5_VL_72B",
     R"("hidden_size": 8192, "intermediate_size": 29568, "num_attention_heads": 64, "num_hidden_layers": 80,
        "num_key_value_heads": 8, "tie_word_embeddings": false, "vocab_size": 152064)",
     R"("out_hidden_size": 8192, "intermediate_size": 3456)", true, 8192, 80, 64, 8, 29568, 152064, false, 3456,
     73'410'777'344},
};

class ReleasedModel : public ::testing::TestWithParam<Released> {};
INSTANTIATE_TEST_SUITE_P(QwenVlConfig, ReleasedModel, ::testing::ValuesIn(kReleased),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(ReleasedModel, HasItsShapeAndItsNumberOfParameters) {
  const Released& r = GetParam();
  const QwenVlConfig config = parsed(fmt::format(
      R"({{"architectures": ["{0}ForConditionalGeneration"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151645, "vision_start_token_id": 151652, "vision_end_token_id": 151653,
        "vision_token_id": 151654, "image_token_id": 151655, "video_token_id": 151656, "hidden_act": "silu",
        "initializer_range": 0.02, "max_position_embeddings": {1}, "max_window_layers": 28, "model_type": "{2}", {3},
        "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768, "torch_dtype": "bfloat16",
        "transformers_version": "4.41.2", "use_cache": true, "use_sliding_window": false,
        "vision_config": {{{4}, {5}}}, "rope_scaling": {{"type": "mrope", "mrope_section": [16, 24, 24]}}}})",
      r.is_2_5 ? "Qwen2_5_VL" : "Qwen2VL", r.is_2_5 ? 128000 : 32768, r.is_2_5 ? "qwen2_5_vl" : "qwen2_vl", r.text,
      r.is_2_5 ? kVision25 : kVision2, r.vision));
  const DecoderConfig& text = config.text;
  EXPECT_EQ(text.hidden_size, r.hidden);
  EXPECT_EQ(text.num_hidden_layers, r.layers);
  EXPECT_EQ(text.num_attention_heads, r.heads);
  EXPECT_EQ(text.num_key_value_heads, r.kv_heads);
  EXPECT_EQ(text.head_dim, 128);
  EXPECT_EQ(text.intermediate_size, r.intermediate);
  EXPECT_EQ(text.vocab_size, r.vocab);
  EXPECT_EQ(text.tie_word_embeddings, r.tied);
  EXPECT_THAT(text.rope_scaling.mrope_section, ElementsAre(16, 24, 24));
  EXPECT_EQ(text.rope_scaling.type, RopeType::kDefault);
  EXPECT_EQ(longest_sequence(text), r.is_2_5 ? 128000 : 32768);
  EXPECT_EQ(config.vision.hidden_size, 1280);
  EXPECT_EQ(config.vision.intermediate_size, r.vision_intermediate);
  EXPECT_EQ(config.vision.patch_values(), 1176);
  EXPECT_EQ(config.vision.merged(), 4);
  EXPECT_EQ(config.vision.tokens_per_second, r.is_2_5 ? 2 : 4);
  EXPECT_EQ(config.image_token_id, 151655);
  EXPECT_EQ(build_qwen_vl(config)->parameter_count(), r.parameters);
}

// --- What is refused

TEST(QwenVlConfigRefusal, NamesSizesThatAreOutOfRangeOrDoNotFit) {
  EXPECT_EQ(refused("qwen2_vl", R"({"vision_config": {"depth": 0}})"),
            "config.json: vision_config.depth is 0; it must be at least 1");
  EXPECT_EQ(refused("qwen2_vl", R"({"vision_config": {"depth": 4097}})"),
            "config.json: vision_config.depth is 4097; it must be at most 4096");
  EXPECT_EQ(refused("qwen2_vl", R"({"vision_config": {"num_heads": "two"}})"),
            R"(config.json: vision_config.num_heads is "two"; a whole number is expected)");
  EXPECT_EQ(refused("qwen2_vl", R"({"vision_config": {"embed_dim": 36}})"),
            "config.json: vision_config.embed_dim is 36; it must be a multiple of 4 num_heads (8)");
  EXPECT_EQ(refused("qwen2_5_vl", R"({"vision_config": {"hidden_size": 36}})"),
            "config.json: vision_config.hidden_size is 36; it must be a multiple of 4 num_heads (8)");
  EXPECT_EQ(refused("qwen2_5_vl", R"({"vision_config": {"intermediate_size": 16777217}})"),
            "config.json: vision_config.intermediate_size is 16777217; it must be at most 16777216");
  EXPECT_EQ(refused("qwen2_vl", R"({"vision_config": {"patch_size": 1025}})"),
            "config.json: vision_config.patch_size is 1025; it must be at most 1024");
  EXPECT_EQ(refused("qwen2_vl", R"({"vision_config": {"spatial_merge_size": 17}})"),
            "config.json: vision_config.spatial_merge_size is 17; it must be at most 16");
  EXPECT_EQ(refused("qwen2_5_vl", R"({"vision_config": {"tokens_per_second": 0}})"),
            "config.json: vision_config.tokens_per_second is 0; it must be at least 1");
  EXPECT_EQ(refused("qwen2_vl", R"({"vision_config": {"mlp_ratio": -1}})"),
            "config.json: vision_config.mlp_ratio is -1; it must be greater than 0");
}

TEST(QwenVlConfigRefusal, NamesATowerOfAnotherWidthThanTheText) {
  EXPECT_EQ(refused("qwen2_vl", R"({"vision_config": {"hidden_size": 32}})"),
            "config.json: vision_config.hidden_size is 32; it must be the text's hidden_size (64)");
  EXPECT_EQ(refused("qwen2_5_vl", R"({"vision_config": {"out_hidden_size": 32}})"),
            "config.json: vision_config.out_hidden_size is 32; it must be the text's hidden_size (64)");
  EXPECT_EQ(refused("qwen3_vl", R"({"vision_config": {"out_hidden_size": null}})"),
            "config.json: vision_config.out_hidden_size is absent; it must be the text's hidden_size (64)");
}

TEST(QwenVlConfigRefusal, NamesWindowsAndBlocks) {
  EXPECT_EQ(refused("qwen2_5_vl", R"({"vision_config": {"window_size": 60}})"),
            "config.json: vision_config.window_size is 60; it must be a multiple of patch_size times "
            "spatial_merge_size (28)");
  EXPECT_EQ(refused("qwen2_5_vl", R"({"vision_config": {"fullatt_block_indexes": [2]}})"),
            "config.json: vision_config.fullatt_block_indexes is [2]; blocks are numbered 0 to 1");
  EXPECT_EQ(refused("qwen2_5_vl", R"({"vision_config": {"fullatt_block_indexes": [-1]}})"),
            "config.json: vision_config.fullatt_block_indexes is [-1]; blocks are numbered 0 to 1");
  EXPECT_EQ(refused("qwen2_5_vl", R"({"vision_config": {"fullatt_block_indexes": [1,0]}})"),
            "config.json: vision_config.fullatt_block_indexes is [1,0]; the numbers must grow");
  EXPECT_EQ(refused("qwen2_5_vl", R"({"vision_config": {"fullatt_block_indexes": [1,1]}})"),
            "config.json: vision_config.fullatt_block_indexes is [1,1]; the numbers must grow");
  EXPECT_EQ(refused("qwen2_5_vl", R"({"vision_config": {"fullatt_block_indexes": null}})"),
            "config.json: vision_config.fullatt_block_indexes is absent; blocks are numbered 0 to 1");
  EXPECT_EQ(refused("qwen3_vl", R"({"vision_config": {"deepstack_visual_indexes": [0,3]}})"),
            "config.json: vision_config.deepstack_visual_indexes is [0,3]; blocks are numbered 0 to 2");
  EXPECT_EQ(refused("qwen3_vl", R"({"vision_config": {"num_position_embeddings": 60}})"),
            "config.json: vision_config.num_position_embeddings is 60; a square is expected");
}

TEST(QwenVlConfigRefusal, NamesAnMropeSectionThatIsMissingOrDoesNotFit) {
  EXPECT_EQ(refused("qwen2_vl", R"({"text_config": {"rope_parameters": null}})"),
            "config.json: text_config.rope_parameters is absent; the model needs its mrope_section: frequencies for "
            "time, height and width");
  EXPECT_THAT(refused("qwen2_5_vl", R"({"text_config": {"rope_parameters": {"mrope_section": null}}})"),
              ::testing::AllOf(::testing::StartsWith("config.json: text_config.rope_parameters is {"),
                               ::testing::EndsWith("; the model needs its mrope_section: frequencies for time, height "
                                                   "and width")));
  const auto section = [](const std::string& given) {
    return refused("qwen2_vl",
                   fmt::format(R"({{"text_config": {{"rope_parameters": {{"mrope_section": {}}}}}}})", given));
  };
  EXPECT_EQ(section("[2,3,4]"),
            "config.json: text_config.rope_parameters.mrope_section is [2,3,4]; the sum is 9, and half of head_dim 16 "
            "is 8");
  for (const char* given : {"[4,4]", "[-1,5,4]", "[2,2,2,2]"}) {
    EXPECT_EQ(section(given), fmt::format("config.json: text_config.rope_parameters.mrope_section is {}; three numbers "
                                          "are expected: of frequencies for time, height and width",
                                          given));
  }
}

TEST(QwenVlConfigRefusal, NamesTokensOutsideTheVocabulary) {
  EXPECT_EQ(refused("qwen2_vl", R"({"image_token_id": 256})"),
            "config.json: image_token_id is 256; ids go from 0 to 255 (vocab_size is 256)");
  EXPECT_EQ(refused("qwen2_5_vl", R"({"video_token_id": -1})"),
            "config.json: video_token_id is -1; ids go from 0 to 255 (vocab_size is 256)");
  EXPECT_EQ(refused("qwen3_vl", R"({"vision_start_token_id": null})"),  // then 151652
            "config.json: vision_start_token_id is absent; ids go from 0 to 255 (vocab_size is 256)");
  EXPECT_EQ(refused("qwen2_vl", R"({"vision_end_token_id": 1000})"),
            "config.json: vision_end_token_id is 1000; ids go from 0 to 255 (vocab_size is 256)");
}

TEST(QwenVlConfigRefusal, NamesOtherModelsAndMissingSections) {
  EXPECT_EQ(refused("qwen2_vl", R"({"model_type": "qwen2"})"),
            R"(config.json: model_type is "qwen2"; known are qwen2_vl, qwen2_5_vl, qwen3_vl)");
  EXPECT_EQ(refused("qwen2_vl", R"({"model_type": null})"),
            "config.json: model_type is absent; known are qwen2_vl, qwen2_5_vl, qwen3_vl");
  EXPECT_EQ(refused("qwen2_vl", R"({"vision_config": null})"),
            "config.json: vision_config is absent; the model needs this section");
  EXPECT_EQ(refused("qwen2_vl", R"({"vision_config": {"model_type": "clip"}})"),
            R"(config.json: vision_config.model_type is "clip"; qwen2_vl_vision is expected)");
  EXPECT_EQ(refused("qwen2_5_vl", R"({"text_config": {"model_type": "qwen2"}})"),
            R"(config.json: text_config.model_type is "qwen2"; qwen2_5_vl_text is expected)");
  EXPECT_EQ(refused("qwen2_vl", R"({"text_config": null})"), "config.json: vocab_size is missing");
}

TEST(QwenVlConfigRefusal, NamesWhatIsNotBuilt) {
  EXPECT_EQ(refused("qwen2_vl", R"({"vision_config": {"hidden_act": "silu"}})"),
            R"(config.json: vision_config.hidden_act is "silu"; only "quick_gelu" is built)");
  EXPECT_EQ(refused("qwen2_5_vl", R"({"vision_config": {"hidden_act": "quick_gelu"}})"),
            R"(config.json: vision_config.hidden_act is "quick_gelu"; only "silu" is built)");
  EXPECT_EQ(refused("qwen3_vl", R"({"vision_config": {"hidden_act": "gelu"}})"),
            R"(config.json: vision_config.hidden_act is "gelu"; only "gelu_pytorch_tanh" is built)");
  EXPECT_EQ(refused("qwen2_vl", R"({"vision_config": {"rope_parameters": {"rope_type": "default"}}})"),
            R"(config.json: vision_config.rope_parameters.rope_type is "default"; only "axial" is built)");
  EXPECT_EQ(refused("qwen2_vl", R"({"vision_config": {"rope_parameters": {"rope_theta": 5000}}})"),
            "config.json: vision_config.rope_parameters.rope_theta is 5000; only 10000 is built");
}

// --- YAML

std::string yaml(const std::string& top, const std::string& vision, const std::string& text) {
  return "model_type: qwen2_5_vl\nimage_token_id: 252\nvideo_token_id: 253\nvision_start_token_id: 250\n"
         "vision_end_token_id: 251\n" +
         top +
         "vision_config:\n  depth: 2\n  hidden_size: 32\n  num_heads: 2\n  intermediate_size: 48\n"
         "  out_hidden_size: 64\n  window_size: 56\n  fullatt_block_indexes: [1]\n" +
         vision +
         "text_config:\n  vocab_size: 256\n  hidden_size: 64\n  intermediate_size: 128\n  num_hidden_layers: 2\n"
         "  num_attention_heads: 4\n  num_key_value_heads: 2\n  max_position_embeddings: 512\n"
         "  rope_parameters: {rope_type: default, mrope_section: [2, 3, 3]}\n" +
         text;
}

QwenVlConfig parsed_yaml(const std::string& text) {
  return read_qwen_vl_config(ConfigReader::from_yaml(text, "vlm.yaml"));
}

TEST(QwenVlYaml, IsReadWithFrozenSections) {
  const QwenVlConfig config = parsed_yaml(yaml("", "  freeze: true\n  tokens_per_second: 2\n", "  freeze: true\n"));
  EXPECT_TRUE(config.vision.freeze);
  EXPECT_TRUE(config.freeze_text);
  QwenVisionConfig vision = load_qwen_vl_config(kReferences / "vision/qwen2_5_vl").vision;
  vision.freeze = true;
  EXPECT_TRUE(config.vision == vision);
  EXPECT_EQ(config.text.rope_theta, 1e6);
}

TEST(QwenVlYaml, RefusesUnknownKeysInEverySection) {
  const auto message = [](const std::string& text) {
    return test::message_of<ConfigError>([&] { parsed_yaml(text); });
  };
  EXPECT_EQ(message(yaml("image_tokn_id: 3\n", "", "")),
            "vlm.yaml:6:1: unknown key 'image_tokn_id'; did you mean 'image_token_id'?");
  EXPECT_EQ(message(yaml("", "  freze: true\n", "")),
            "vlm.yaml:14:3: unknown key 'vision_config.freze'; did you mean 'vision_config.freeze'?");
  EXPECT_EQ(message(yaml("", "", "  freze: true\n")),
            "vlm.yaml:23:3: unknown key 'text_config.freze'; did you mean 'text_config.freeze'?");
  EXPECT_EQ(message(yaml("", "  windowsize: 112\n", "")),
            "vlm.yaml:14:3: unknown key 'vision_config.windowsize'; did you mean 'vision_config.window_size'?");
}

}  // namespace
}  // namespace loom::models
