// Promise: MindSpeed-MM's model.json makes the configuration of its model, tower by tower: the published shapes, a tiny
//          one of each family, what is frozen, what stands for a flag; a wrong key is refused with its path, and one
//          that contradicts another key or the configuration of weights with both.
// World:   a tiny file of each family, changed key by key.
#include "models/mm_model/mm_model.h"

#include <cstdlib>
#include <fmt/format.h>
#include <fstream>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/core/error.h"
#include "models/hub/config_reader.h"
#include "models/hub/model_hub.h"
#include "models/internvl/internvl_config.h"
#include "models/qwen_vl/qwen_vl_config.h"
#include "tests/support/files.h"

namespace loom::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::ordered_json;

const std::filesystem::path kSource = LOOM_SOURCE_DIR;

Json qwen2() {
  return Json::parse(R"({
    "model_id": "qwen2vl", "img_context_token_id": 5, "video_token_id": 6, "vision_start_token_id": 3,
    "vision_end_token_id": 4,
    "image_encoder": {
      "vision_encoder": {"model_id": "qwen2vit", "num_layers": 2, "hidden_size": 32, "ffn_hidden_size": 128,
        "num_attention_heads": 2, "patch_size": 14, "in_channels": 3, "spatial_merge_size": 2,
        "temporal_patch_size": 2, "normalization": "LayerNorm", "activation_func": "quick_gelu", "freeze": true},
      "vision_projector": {"model_id": "lnmlp", "input_size": 32, "hidden_size": 64, "ffn_hidden_size": 128,
        "freeze": true}},
    "text_decoder": {"model_id": "qwen2lm", "num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 96,
      "num_attention_heads": 4, "num_query_groups": 2, "vocab_size": 40, "max_position_embeddings": 128,
      "layernorm_epsilon": 1e-06, "rope_theta": 1000000.0, "mrope_section": [2, 3, 3], "rope_scaling": null,
      "untie_embeddings_and_output_weights": true, "add_qkv_bias": true, "bf16": true, "params_dtype": "bf16"},
    "text_encoder": null, "video_encoder": null})");
}

Json qwen25() {
  Json json = qwen2();
  json.merge_patch(Json::parse(R"({
    "model_id": "qwen2_5vl",
    "image_encoder": {"vision_encoder": {"normalization": "RMSNorm", "activation_func": "silu", "ffn_hidden_size": 48,
      "intermediate_size": 48, "gated_linear_unit": true, "window_attn_size": 112, "fullatt_block_indexes": [1],
      "tokens_per_second": 2}},
    "text_decoder": {"model_id": "qwen2_5_lm"}})"));
  return json;
}

Json qwen3() {
  Json json = qwen2();
  json.merge_patch(Json::parse(R"({
    "model_id": "qwen3_vl",
    "image_encoder": {"vision_encoder": {"model_id": "qwen3vit", "activation_func": "gelu_pytorch_tanh",
      "patch_size": 16, "max_position_embeddings": 16, "deepstack_visual_indexes": [0]}},
    "text_decoder": {"model_id": "qwen3_lm", "add_qkv_bias": false, "qk_layernorm": true, "mrope_section": null,
      "kv_channels": 16,
      "rope_scaling": {"rope_type": "default", "mrope_interleaved": true, "mrope_section": [2, 3, 3]}}})"));
  return json;
}

Json internvl() {
  return Json::parse(R"({
    "model_id": "InternVL2.5", "img_context_token_id": 5, "downsample_ratio": 0.5, "select_layer": -1,
    "ps_version": "v2",
    "image_encoder": {
      "vision_encoder": {"model_id": "InternViT", "num_layers": 2, "hidden_size": 32, "ffn_hidden_size": 64,
        "num_attention_heads": 4, "patch_size": 8, "image_size": 32, "num_channels": 3, "add_qkv_bias": true,
        "layernorm_epsilon": 1e-6, "normalization": "LayerNorm", "initializer_factor": 1.0, "drop_path_rate": 0.0},
      "vision_projector": {"model_id": "InternVLMLP", "downsample_ratio": 0.5, "vit_hidden_size": 32,
        "llm_hidden_size": 64}},
    "text_decoder": {"model_id": "Qwen2.5llm", "num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 96,
      "num_attention_heads": 4, "num_query_groups": 2, "vocab_size": 40, "max_position_embeddings": 128,
      "layernorm_epsilon": 1e-06, "rotary_base": 1000000, "add_qkv_bias": true}})");
}

MmModel parsed(const Json& json) { return parse_mm_model(json.dump(), "model.json"); }
Json config_of(const Json& json) { return Json::parse(config_json(parsed(json))); }

Json changed(Json json, const std::string& patch) {
  json.merge_patch(Json::parse(patch));
  return json;
}

std::string refusal(const Json& json, const std::string& patch = "{}") {
  return test::message_of<ConfigError>([&] { config_json(parsed(changed(json, patch))); });
}

// --- What a file says

TEST(MmModel, MakesATinyModelOfEachFamily) {
  const Json two = config_of(qwen2());
  EXPECT_EQ(two["model_type"], "qwen2_vl");
  EXPECT_EQ(two["image_token_id"], 5);
  EXPECT_EQ(two["vision_config"]["embed_dim"], 32);
  EXPECT_EQ(two["vision_config"]["mlp_ratio"], 4);
  EXPECT_EQ(two["vision_config"]["hidden_size"], 64);
  EXPECT_EQ(two["text_config"]["num_key_value_heads"], 2);
  EXPECT_EQ(two["text_config"]["rope_scaling"]["mrope_section"], Json({2, 3, 3}));
  EXPECT_EQ(two["tie_word_embeddings"], false);
  const Json two_and_a_half = config_of(qwen25());
  EXPECT_EQ(two_and_a_half["vision_config"]["intermediate_size"], 48);
  EXPECT_EQ(two_and_a_half["vision_config"]["fullatt_block_indexes"], Json::array({1}));
  EXPECT_EQ(two_and_a_half["vision_config"]["tokens_per_second"], 2);
  const Json three = config_of(qwen3());
  EXPECT_EQ(three["vision_config"]["num_position_embeddings"], 16);
  EXPECT_EQ(three["vision_config"]["deepstack_visual_indexes"], Json::array({0}));
  EXPECT_EQ(three["text_config"]["rope_scaling"]["mrope_interleaved"], true);
  const Json intern = config_of(internvl());
  EXPECT_EQ(intern["text_config"]["model_type"], "qwen2");
  EXPECT_EQ(intern["text_config"]["rope_theta"], 1e6);
  EXPECT_EQ(intern["vision_config"]["attention_bias"], true);
  EXPECT_EQ(intern["vision_config"]["layer_scale_init_value"], 1.0);
  EXPECT_EQ(intern["image_seq_length"], 4);
  for (const Json& config : {two, two_and_a_half, three, intern}) {
    EXPECT_NO_THROW(ModelHub::global().build(ConfigReader::from_json(config.dump(), "config.json")));
  }
}

// The shapes of MindSpeed-MM's examples for 7B and 8B models.
TEST(MmModel, MakesThePublishedShapes) {
  Json seven = changed(qwen2(), R"({"img_context_token_id": 151655, "video_token_id": null,
    "vision_start_token_id": null, "vision_end_token_id": null,
    "image_encoder": {"vision_encoder": {"num_layers": 32, "hidden_size": 1280, "ffn_hidden_size": 5120,
        "num_attention_heads": 16, "llm_hidden_size": 3584, "pipeline_num_layers": [32, 0, 0, 0]},
      "vision_projector": {"input_size": 1280, "hidden_size": 3584, "ffn_hidden_size": 5120}},
    "text_decoder": {"num_layers": 28, "hidden_size": 3584, "ffn_hidden_size": 18944, "num_attention_heads": 28,
      "num_query_groups": 4, "vocab_size": 152064, "max_position_embeddings": 32768, "mrope_section": [16, 24, 24]}})");
  const auto shape = [](const char* name) {
    return Json::parse(to_json(load_qwen_vl_config(kSource / "configs/models" / (std::string(name) + ".yaml"))));
  };
  EXPECT_EQ(config_of(seven), shape("qwen2_vl_7b"));
  seven = changed(seven, R"({"model_id": "qwen2_5vl",
    "image_encoder": {"vision_encoder": {"ffn_hidden_size": 3420, "normalization": "RMSNorm",
      "activation_func": "silu", "window_attn_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
      "tokens_per_second": 2}},
    "text_decoder": {"model_id": "qwen2_5_lm", "max_position_embeddings": 128000}})");
  EXPECT_EQ(config_of(seven), shape("qwen2.5_vl_7b"));
  const Json eight = changed(qwen3(), R"({"img_context_token_id": 151655, "video_token_id": 151656,
    "vision_start_token_id": 151652, "vision_end_token_id": null,
    "image_encoder": {"vision_encoder": {"num_layers": 27, "hidden_size": 1152, "ffn_hidden_size": 4304,
        "num_attention_heads": 16, "max_position_embeddings": 2304, "deepstack_visual_indexes": [8, 16, 24]},
      "vision_projector": {"input_size": 1152, "hidden_size": 4096, "ffn_hidden_size": 4608}},
    "text_decoder": {"num_layers": 36, "hidden_size": 4096, "ffn_hidden_size": 12288, "num_attention_heads": 32,
      "num_query_groups": 8, "kv_channels": 128, "vocab_size": 151936, "max_position_embeddings": 262144,
      "rope_theta": 5000000, "rope_scaling": {"mrope_section": [24, 20, 20]}}})");
  EXPECT_EQ(config_of(eight), shape("qwen3_vl_8b"));
}

TEST(MmModel, NamesTheTextOfInternvl) {
  const auto type = [](const std::string& text) {
    return config_of(changed(internvl(), R"({"text_decoder": )" + text + "}"))["text_config"]["model_type"];
  };
  EXPECT_EQ(type(R"({"add_qkv_bias": false})"), "llama");
  EXPECT_EQ(type(R"({"add_qkv_bias": null})"), "llama");
  EXPECT_EQ(type(R"({"add_qkv_bias": false, "qk_layernorm": true})"), "qwen3");
  EXPECT_EQ(refusal(internvl(), R"({"text_decoder": {"qk_layernorm": true}})"),
            "model.json: text_decoder.qk_layernorm is true, and text_decoder.add_qkv_bias too: no text model that is "
            "built has both; write false for one");
}

TEST(MmModel, FreezesTowersAsMindSpeedMMDoes) {
  EXPECT_THAT(parsed(qwen2()).frozen, ElementsAre("vision_tower", "multi_modal_projector"));
  const auto frozen = [](const std::string& patch) { return parsed(changed(qwen2(), patch)).frozen; };
  EXPECT_THAT(frozen(R"({"image_encoder": {"vision_encoder": {"freeze": false}, "vision_projector": {"freeze": null}},
                         "text_decoder": {"freeze": true}})"),
              ElementsAre("language_model"));
  const MmModel model = parsed(changed(qwen2(), R"({"image_encoder": {"vision_encoder": {"freeze": null},
                                                   "vision_projector": {"freeze": false}}})"));
  EXPECT_THAT(model.frozen, ElementsAre("vision_tower"));
  EXPECT_THAT(model.notices,
              ElementsAre("model.json: image_encoder.vision_encoder has no freeze, and is not trained, as in "
                          "MindSpeed-MM; write freeze: false to train it",
                          "model.json: without effect here: text_decoder.bf16, text_decoder.params_dtype"));
}

TEST(MmModel, GivesFlagsOfTheJob) {
  const MmModel model = parsed(changed(qwen2(), R"({"init_from_hf_path": "weights",
    "text_decoder": {"recompute_granularity": "full", "seq_length": 64}})"));
  EXPECT_EQ(model.init_from_hf_path, "weights");
  std::vector<std::string> flags;
  for (const MmFlag& flag : model.flags) {
    flags.push_back(fmt::format("{}: {} {}{}", flag.path, flag.flag, flag.value, flag.sets ? ", sets" : ""));
  }
  EXPECT_THAT(flags, ElementsAre("text_decoder.untie_embeddings_and_output_weights: "
                                 "--untie-embeddings-and-output-weights true",
                                 "text_decoder.bf16: --bf16 true",
                                 "text_decoder.recompute_granularity: --recompute-granularity full, sets",
                                 "text_decoder.seq_length: --seq-length 64"));
}

TEST(MmModel, IsReadFromTheSectionOfAYaml) {
  const std::filesystem::path path = test::write_file(
      test::fresh_folder() / "f.yaml",
      "gpt_args: {}\nmodel:\n  model_id: qwen3_vl\n  image_encoder:\n    vision_encoder: {freeze: true, depht: 2}\n");
  EXPECT_THAT(test::message_of<ConfigError>([&] { read_mm_model(path); }),
              StartsWith(path.string() + ":5:36: unknown key 'model.image_encoder.vision_encoder.depht'"));
  EXPECT_THAT(test::message_of<ConfigError>([] { read_mm_model("model.txt"); }),
              HasSubstr("model.txt: MindSpeed-MM's model is a .json file, or the section model of a .yaml file"));
}

// --- What it must not say

TEST(MmModel, RefusesKeysByTheirPath) {
  EXPECT_EQ(refusal(qwen2(), R"({"model_id": null})"),
            "model.json: the model has no model_id; write qwen2vl, qwen2_5vl, qwen3_vl or InternVL");
  EXPECT_EQ(refusal(qwen2(), R"({"model_id": "qwen3_vl_moe"})"),
            "model.json: model_id is \"qwen3_vl_moe\", which is not built; built are qwen2vl, qwen2_5vl, qwen3_vl, "
            "InternVL, InternVL2.5, InternVL3, internvl");
  EXPECT_THAT(refusal(qwen2(), R"({"model_id": "qwen2_vl"})"), HasSubstr("not built; did you mean qwen2vl? built are"));
  EXPECT_EQ(refusal(qwen2(), R"({"text_decoder": {"num_layer": 2}})"),
            "model.json: unknown key 'text_decoder.num_layer'; did you mean num_layers?");
  EXPECT_EQ(refusal(qwen2(), R"({"image_encoder": {"vision_encoder": {"window_attn_size": 112}}})"),
            "model.json: image_encoder.vision_encoder.window_attn_size is a key of Qwen2.5-VL, and model_id makes "
            "Qwen2-VL; remove it");
  EXPECT_EQ(refusal(qwen2(), R"({"image_encoder": {"encoder": {}}})"),
            "model.json: unknown key 'image_encoder.encoder'; the keys here are vision_encoder, vision_projector");
  EXPECT_EQ(refusal(qwen2(), R"({"text_decoder": 3})"), "model.json: text_decoder is 3; use a mapping of keys");
  EXPECT_EQ(refusal(qwen2(), R"({"text_decoder": {"num_layers": 0}})"),
            "model.json: text_decoder.num_layers is 0; use a whole number from 1 to 2147483647");
  EXPECT_EQ(refusal(qwen2(), R"({"text_decoder": {"num_layers": 5000}})"),
            "model.json: text_decoder.num_layers is 5000; it must be at most 4096");
  EXPECT_EQ(refusal(qwen2(), R"({"image_encoder": {"vision_encoder": {"freeze": "yes, please"}}})"),
            "model.json: image_encoder.vision_encoder.freeze is \"yes, please\"; use true or false");
  EXPECT_EQ(refusal(qwen2(), R"({"text_decoder": {"hidden_dropout": 0.1}})"),
            "model.json: text_decoder.hidden_dropout is 0.1: dropout is not built in these models; write 0");
  EXPECT_EQ(refusal(qwen2(), R"({"text_encoder": {}})"),
            "model.json: text_encoder is a mapping: is not built; write null");
  EXPECT_EQ(refusal(internvl(), R"({"image_encoder": {"vision_encoder": {"drop_path_rate": 0.4}}})"),
            "model.json: image_encoder.vision_encoder.drop_path_rate is 0.4: dropping of whole branches is not built; "
            "write 0");
  EXPECT_EQ(refusal(qwen2(), R"({"image_encoder": {"vision_encoder": {"model_id": "clip"}}})"),
            "model.json: image_encoder.vision_encoder.model_id is \"clip\": is no tower of this model; write qwen2vit");
  EXPECT_EQ(refusal(qwen2(), R"({"text_decoder": {"rope_scaling": {"a.b": 1}}})"),
            "model.json: text_decoder.rope_scaling.a.b is 1; use keys of scaled positions");
  EXPECT_EQ(refusal(qwen2(), R"({"text_decoder": {"rope_scaling": {"factr": 1}}})"),
            "model.json: unknown key 'text_decoder.factr'");
}

TEST(MmModel, NamesTheSizesThatFreshWeightsNeed) {
  EXPECT_EQ(
      refusal(qwen2(), R"({"text_decoder": {"num_attention_heads": 5}})"),
      "model.json: text_decoder.hidden_size is 64, and no multiple of num_attention_heads (5); write kv_channels, "
      "the size of a head");
  EXPECT_EQ(refusal(qwen2(), R"({"text_decoder": {"vocab_size": null}})"),
            "model.json: text_decoder.vocab_size is not given, and fresh weights need it; write it, or give weights by "
            "--init-from-hf-path");
  EXPECT_THAT(refusal(qwen2(), R"({"img_context_token_id": null})"),
              HasSubstr("model.json: img_context_token_id is not given"));
  EXPECT_THAT(refusal(qwen2(), R"({"image_encoder": null})"),
              HasSubstr("model.json: image_encoder.vision_encoder.num_layers is not given"));
}

TEST(MmModel, RefusesKeysThatContradictEachOther) {
  EXPECT_EQ(
      refusal(qwen25(), R"({"image_encoder": {"vision_encoder": {"intermediate_size": 64}}})"),
      "model.json: image_encoder.vision_encoder.intermediate_size is 64, and "
      "image_encoder.vision_encoder.ffn_hidden_size is 48, and both mean the same; write one value, or remove one "
      "key");
  EXPECT_EQ(refusal(qwen2(), R"({"image_encoder": {"vision_projector": {"ffn_hidden_size": 64}}})"),
            "model.json: image_encoder.vision_projector.ffn_hidden_size is 64, and "
            "image_encoder.vision_encoder.hidden_size * image_encoder.vision_encoder.spatial_merge_size * "
            "image_encoder.vision_encoder.spatial_merge_size is 128; write that");
  EXPECT_EQ(
      refusal(internvl(), R"({"image_encoder": {"vision_projector": {"llm_hidden_size": 32}}})"),
      "model.json: image_encoder.vision_projector.llm_hidden_size is 32, and text_decoder.hidden_size is 64; write "
      "that");
  EXPECT_EQ(refusal(qwen2(), R"({"image_encoder": {"vision_projector": {"hidden_size": 32}}})"),
            "model.json: image_encoder.vision_projector.hidden_size is 32; it must be the text's hidden_size (64)");
  EXPECT_THAT(
      refusal(qwen2(), R"({"text_decoder": {"mrope_section": [2, 3, 4]}})"),
      HasSubstr("model.json: text_decoder.mrope_section is [2,3,4]; the sum is 9, and half of head_dim 16 is 8"));
}

// --- Beside weights

class Weights : public ::testing::Test {
 protected:
  void write(const Json& model) { test::write_file(folder_ / "config.json", config_of(model).dump()); }
  std::string refusal(const Json& model) const {
    return test::message_of<ConfigError>([&] { check_weights(parsed(model), ConfigReader::load(folder_)); });
  }
  std::string config() const { return (folder_ / "config.json").string(); }

  const std::filesystem::path folder_ = test::fresh_folder();
};

TEST_F(Weights, AreThoseThatTheFileDescribes) {
  for (const Json& model : {qwen2(), qwen25(), qwen3(), internvl()}) {
    write(model);
    EXPECT_NO_THROW(check_weights(parsed(model), ConfigReader::load(folder_))) << model["model_id"];
  }
  write(qwen3());
  const Json part = Json::parse(R"({"model_id": "qwen3_vl", "image_encoder": {"vision_encoder": {"freeze": true}},
                                   "text_decoder": {"num_layers": 2, "freeze": false}, "patch": {"scale_grad": true}})");
  EXPECT_NO_THROW(check_weights(parsed(part), ConfigReader::load(folder_)));
}

TEST_F(Weights, ThatDifferAreRefusedWithBothValues) {
  write(qwen2());
  EXPECT_EQ(refusal(changed(qwen2(), R"({"text_decoder": {"num_layers": 999999}})")),
            "model.json: text_decoder.num_layers makes text_config.num_hidden_layers 999999, and it is 2 in " +
                config() + "; the weights are what their configuration says: write that, or remove the key");
  EXPECT_THAT(refusal(changed(qwen2(), R"({"image_encoder": {"vision_encoder": {"ffn_hidden_size": 64},
                                                             "vision_projector": {"ffn_hidden_size": null}}})")),
              HasSubstr("vision_encoder.ffn_hidden_size makes vision_config.mlp_ratio 2, and it is 4 in " + config()));
  EXPECT_THAT(
      refusal(changed(qwen2(), R"({"text_decoder": {"untie_embeddings_and_output_weights": false}})")),
      HasSubstr("untie_embeddings_and_output_weights makes tie_word_embeddings true, and it is false in " + config()));
  EXPECT_EQ(refusal(qwen25()), "model.json: model_id makes model_type qwen2_5_vl, and it is qwen2_vl in " + config() +
                                   "; give the weights of that model");
}

// --- The table

TEST(MmModelTable, HasEachKeyOfAModelOnce) {
  std::set<std::tuple<MmSection, std::string_view, unsigned>> seen;
  for (const MmKey& key : mm_model_keys()) {
    EXPECT_FALSE(key.about.empty()) << key.name;
    for (const unsigned model : {kMmQwen2, kMmQwen25, kMmQwen3, kMmInternvl}) {
      if ((key.models & model) == 0) continue;
      EXPECT_TRUE(seen.insert({key.section, key.name, model}).second) << key.name;
    }
  }
}

constexpr std::string_view kMark =
    "<!-- The table below is made from mm_model_keys(); tests/models/mm_model_test.cpp compares them. -->\n";

std::string table_text() {
  std::string text = "\n| key | models | here | what it becomes, or why |\n| --- | --- | --- | --- |\n";
  for (const MmKey& key : mm_model_keys()) {
    const std::string_view section = path_of(key.section);
    const char* effect = key.effect == MmEffect::kBuilt  ? "built"
                         : key.effect == MmEffect::kNone ? "without effect"
                                                         : "one value";
    const bool is_key = key.effect == MmEffect::kBuilt && key.about.find(' ') == std::string_view::npos;
    text += fmt::format("| `{}{}{}` | {} | {}{} | {}{}{} |\n", section, section.empty() ? "" : ".", key.name,
                        models_text(key.models), effect, key.is_needed ? ", needed" : "", is_key ? "`" : "", key.about,
                        is_key ? "`" : "");
  }
  return text;
}

// With LOOM_WRITE_DOCS in the environment the table is written; it ends the page.
TEST(MmModelTable, IsTheTableOfTheDocument) {
  const std::filesystem::path path = kSource / "docs/multimodal.md";
  const std::string page = test::read_file(path);
  const std::size_t mark = page.find(kMark);
  ASSERT_NE(mark, page.npos);
  const std::string expected = page.substr(0, mark + kMark.size()) + table_text();
  if (std::getenv("LOOM_WRITE_DOCS") != nullptr) std::ofstream(path) << expected;
  EXPECT_EQ(test::read_file(path), expected) << "LOOM_WRITE_DOCS=1 models_test writes it";
}

}  // namespace
}  // namespace loom::models
