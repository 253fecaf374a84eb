// Promise: each key of dataset_param and dataloader_param is applied, refused by name with a reason, or named as
//          without effect; what is missing, unknown or of another type is refused with its place.
// World:   texts of data.json and of a YAML file, and the page of the keys.
#include "engine/multimodal/data_config.h"

#include <cstdlib>
#include <fmt/format.h>
#include <fstream>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/config/document.h"
#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::multimodal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Json = nlohmann::ordered_json;

Json qwen() {
  return Json::parse(R"({
    "dataset_param": {
      "dataset_type": "huggingface",
      "basic_parameters": {"template": "qwen2vl", "dataset_dir": "./data", "dataset": "./data/a.json,b.json",
                           "cutoff_len": 2048},
      "preprocess_parameters": {"model_name_or_path": "./ckpt"},
      "attr": {"images": "images", "messages": "messages", "role_tag": "role", "content_tag": "content",
               "user_tag": "user", "assistant_tag": "assistant", "observation_tag": null, "function_tag": null}},
    "dataloader_param": {"dataloader_mode": "sampler", "sampler_type": "BaseRandomBatchSampler", "drop_last": true,
                         "shuffle": true, "collate_param": {"model_name": "qwen2vl", "ignore_pad_token_for_loss": true}}
  })");
}

Json internvl() {
  return Json::parse(R"({
    "dataset_param": {
      "dataset_type": "multimodal",
      "basic_parameters": [{"data_path": "a.jsonl", "data_folder": "pics", "repeat_time": 2}, {"data_path": "b.json"}],
      "preprocess_parameters": {"image_reader_type": "torchvision", "train_pipeline": {"image": [
        {"trans_type": "Pad2Square", "param": {"mean": [0.5, 0.5, 0.5]}},
        {"trans_type": "Resize", "param": {"size": [448, 448], "interpolation": "BICUBIC"}},
        {"trans_type": "ToTensor"},
        {"trans_type": "norm_fun", "param": {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}}]}},
      "tokenizer_config": {"hub_backend": "hf", "autotokenizer_name": "AutoTokenizer", "from_pretrained": "ckpt",
                           "add_eos_token": false, "use_fast": false},
      "template_name": "internvl2_5", "image_size": 448, "dynamic_image_size": true, "use_thumbnail": true,
      "max_dynamic_patch": 12, "group_by_length": true},
    "dataloader_param": {"dataloader_mode": "sampler", "sampler_type": "BaseRandomBatchSampler", "drop_last": true,
                         "collate_param": {"model_name": "internvl", "pad_id": 2}}
  })");
}

DataConfig read(const Json& json, const DataJob& job = {}) {
  return read_data_config(config::parse_json(json.dump(), "data.json"), job);
}
std::string refusal(const Json& json) {
  return test::message_of<ConfigError>([&] { read(json); });
}

// The mapping of a dotted path.
Json& at(Json& json, std::string_view path) {
  Json* found = &json;
  while (!path.empty()) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    found = &(*found)[std::string(path.substr(0, dot))];
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return *found;
}

std::string refusal_of(Json json, std::string_view section, const std::string& key, const Json& value) {
  at(json, section)[key] = value;
  return refusal(json);
}

constexpr std::string_view kBasic = "dataset_param.basic_parameters";

TEST(DataConfig, AppliesTheKeysOfQwen) {
  Json json = qwen();
  at(json, kBasic)["max_samples"] = 5;
  at(json, kBasic)["val_rate"] = 0.25;
  auto& pictures = at(json, "dataset_param.preprocess_parameters");
  pictures["image_max_pixels"] = 262144;
  pictures["image_min_pixels"] = 0;
  pictures["video_fps"] = 1.5;
  const DataConfig config = read(json);
  EXPECT_EQ(config.type, DatasetType::kHuggingFace);
  EXPECT_EQ(config.text.template_name, "qwen2vl");
  EXPECT_EQ(config.text.dataset, "./data/a.json,b.json");
  EXPECT_EQ(config.text.cutoff_len, 2048);
  EXPECT_EQ(config.text.max_samples, 5);
  EXPECT_EQ(config.text.val_rate, 0.25);
  EXPECT_EQ(config.pictures.model_name_or_path, "./ckpt");
  EXPECT_EQ(config.pictures.image_max_pixels, 262144);
  EXPECT_EQ(config.pictures.image_min_pixels, 0);
  EXPECT_EQ(config.pictures.video_max_pixels, 65536);
  EXPECT_EQ(config.pictures.video.fps, 1.5);
  EXPECT_EQ(config.pictures.video.maxlen, 128);
  EXPECT_EQ(config.attr.images, "images");
  EXPECT_EQ(config.attr.messages, "messages");
  EXPECT_EQ(config.attr.observation_tag, std::nullopt);
  EXPECT_EQ(config.attr.system_tag, "system");
  EXPECT_TRUE(config.loader.shuffle && config.loader.drop_last && config.loader.ignore_pad_token_for_loss);
  EXPECT_THAT(config.notices, IsEmpty());
}

TEST(DataConfig, AppliesTheKeysOfInternvl) {
  const DataConfig config = read(internvl());
  EXPECT_EQ(config.type, DatasetType::kMultimodal);
  ASSERT_THAT(config.internvl.files, SizeIs(2));
  EXPECT_EQ(config.internvl.files[0].repeat_time, 2);
  EXPECT_EQ(config.internvl.files[0].data_folder, "pics");
  EXPECT_EQ(config.internvl.files[1].data_path, "b.json");
  EXPECT_EQ(config.internvl.tokenizer, "ckpt");
  EXPECT_EQ(config.internvl.image_size, 448);
  EXPECT_EQ(config.internvl.max_dynamic_patch, 12);
  EXPECT_TRUE(config.internvl.pad_to_square && config.internvl.use_thumbnail && config.internvl.dynamic_image_size);
  EXPECT_THAT(config.internvl.mean, ElementsAre(0.1, 0.2, 0.3));
  EXPECT_THAT(config.internvl.std, ElementsAre(0.4, 0.5, 0.6));
  EXPECT_EQ(config.loader.pad_id, 2);
  EXPECT_THAT(config.notices, ElementsAre(HasSubstr("dataset_param.group_by_length")));
}

TEST(DataConfig, ReadsTheSameKeysOfAYamlFile) {
  const config::Value file = config::parse_yaml(R"(
data:
  dataset_param:
    dataset_type: huggingface
    basic_parameters: {template: qwen3_vl, dataset: a.json}
    preprocess_parameters: {model_name_or_path: ckpt}
  dataloader_param: {dataloader_mode: base}
)",
                                                "job.yaml");
  EXPECT_EQ(test::message_of<ConfigError>([&] { read_data_config(*file.find("data"), {}); }),
            "job.yaml: data.dataloader_param has no sampler_type; write BaseRandomBatchSampler; the default of others "
            "is not built");
}

TEST(DataConfig, NamesAMissingKey) {
  for (const char* key : {"dataset_type", "basic_parameters", "preprocess_parameters"}) {
    Json json = qwen();
    json["dataset_param"].erase(key);
    EXPECT_THAT(refusal(json), HasSubstr(fmt::format("data.json: dataset_param has no {};", key)));
  }
  for (const char* key : {"dataset_param", "dataloader_param"}) {
    Json json = qwen();
    json.erase(key);
    EXPECT_THAT(refusal(json), HasSubstr(fmt::format("data.json has no {};", key)));
  }
  Json json = qwen();
  at(json, kBasic).erase("dataset");
  EXPECT_EQ(refusal(json),
            "data.json: dataset_param.basic_parameters has no dataset; name its files, separated by commas");
  json = qwen();
  at(json, "dataset_param.preprocess_parameters").clear();
  EXPECT_THAT(refusal(json), HasSubstr("has no model_name_or_path"));
}

TEST(DataConfig, NamesAnUnknownOrUnbuiltType) {
  EXPECT_EQ(refusal_of(qwen(), "dataset_param", "dataset_type", "t2v"),
            "data.json: dataset_param.dataset_type is t2v, which is not built; use huggingface or multimodal");
  EXPECT_EQ(refusal_of(qwen(), "dataset_param", "dataset_type", "hugginface"),
            "data.json: dataset_param.dataset_type is \"hugginface\", which is no type of data; did you mean "
            "huggingface? built are huggingface and multimodal");
  EXPECT_THAT(refusal_of(qwen(), "dataset_param", "dataset_type", 3), HasSubstr("dataset_type is 3, which is no type"));
}

TEST(DataConfig, LetsTheJobsMicroBatchWinWithOneNotice) {
  Json json = qwen();
  json["dataloader_param"]["batch_size"] = 4;
  EXPECT_THAT(read(json, {.micro_batch_size = 2}).notices,
              ElementsAre("data.json: dataloader_param.batch_size is 4, and --micro-batch-size is 2, which counts"));
  EXPECT_THAT(read(json, {.micro_batch_size = 4}).notices, IsEmpty());
}

TEST(DataConfig, TakesTheJobsLengthUnlessTheFileHasOne) {
  EXPECT_EQ(read(qwen(), {.seq_length = 64}).text.cutoff_len, 2048);
  Json json = qwen();
  at(json, kBasic).erase("cutoff_len");
  EXPECT_EQ(read(json, {.seq_length = 64}).text.cutoff_len, 64);
  EXPECT_EQ(read(json).text.cutoff_len, 1024);
}

TEST(DataConfig, NamesKeysWithoutEffectInOneNotice) {
  Json json = qwen();
  json["dataloader_param"]["pin_memory"] = true;
  json["dataloader_param"]["num_workers"] = 8;
  json["dataloader_param"]["prefetch_factor"] = nullptr;
  at(json, kBasic)["cache_dir"] = "cache";
  EXPECT_THAT(read(json).notices, ElementsAre("data.json: without effect here: "
                                              "dataset_param.basic_parameters.cache_dir, "
                                              "dataloader_param.pin_memory, dataloader_param.num_workers"));
}

TEST(DataConfig, RefusesWhatIsNotBuiltWithTheReason) {
  EXPECT_EQ(refusal_of(qwen(), kBasic, "streaming", true),
            "data.json: dataset_param.basic_parameters.streaming is true: needs no size of the data, which the order "
            "of samples is made of; write false");
  EXPECT_THAT(refusal_of(qwen(), kBasic, "packing", true), HasSubstr("packing of samples with pictures is not built"));
  EXPECT_THAT(refusal_of(qwen(), kBasic, "stage", "rm"), HasSubstr("write sft"));
  EXPECT_THAT(refusal_of(qwen(), kBasic, "tool_format", "qwen"), HasSubstr("calls of functions are not built"));
  EXPECT_THAT(refusal_of(qwen(), "dataset_param.attr", "ranking", true), HasSubstr("preferences"));
  EXPECT_THAT(refusal_of(qwen(), "dataset_param.attr", "formatting", "alpaca"), HasSubstr("write sharegpt"));
  EXPECT_THAT(refusal_of(qwen(), "dataloader_param", "dataloader_mode", "variable"), HasSubstr("write sampler"));
  EXPECT_THAT(refusal_of(qwen(), "dataloader_param", "group_data", true), HasSubstr("write false"));
  EXPECT_THAT(refusal_of(qwen(), "dataloader_param", "drop_last", false), HasSubstr("has no drop_last: true"));
  EXPECT_THAT(refusal_of(qwen(), "dataloader_param.collate_param", "model_name", "llava"),
              HasSubstr("write qwen2vl, qwen3vl or internvl"));
  for (const Json& harmless : {Json(false), Json(nullptr)}) {
    Json json = qwen();
    at(json, kBasic)["streaming"] = harmless;
    EXPECT_NO_THROW(read(json));
  }
}

TEST(DataConfig, RefusesUnknownKeysWithTheNearest) {
  EXPECT_EQ(refusal_of(qwen(), kBasic, "cutof_len", 3),
            "data.json: unknown key 'dataset_param.basic_parameters.cutof_len'; did you mean cutoff_len?");
  EXPECT_THAT(refusal_of(qwen(), "dataset_param", "atr", 3), HasSubstr("did you mean attr?"));
  EXPECT_THAT(refusal_of(qwen(), "dataset_param.attr", "image", "x"), HasSubstr("did you mean images?"));
  EXPECT_THAT(refusal_of(qwen(), "dataloader_param", "shufle", true), HasSubstr("did you mean shuffle?"));
  EXPECT_THAT(refusal_of(qwen(), "", "dataset_params", 1), HasSubstr("did you mean dataset_param?"));
  EXPECT_THAT(refusal_of(internvl(), "dataset_param", "image_sise", 3), HasSubstr("did you mean image_size?"));
}

TEST(DataConfig, RefusesValuesOfAnotherTypeOrRange) {
  EXPECT_THAT(refusal_of(qwen(), kBasic, "cutoff_len", 0), HasSubstr("use a whole number from 1 to 2147483647"));
  EXPECT_THAT(refusal_of(qwen(), kBasic, "train_on_prompt", "yes"), HasSubstr("use true or false"));
  EXPECT_THAT(refusal_of(qwen(), kBasic, "val_rate", 1), HasSubstr("use a number from 0 to below 1"));
  EXPECT_THAT(refusal_of(qwen(), kBasic, "dataset", 5), HasSubstr("use a text"));
  EXPECT_THAT(refusal_of(qwen(), "dataset_param.preprocess_parameters", "video_fps", 0),
              HasSubstr("use a number above 0"));
  EXPECT_THAT(refusal_of(qwen(), "dataset_param", "attr", 5), HasSubstr("use a mapping of keys"));
  EXPECT_THAT(refusal_of(qwen(), "dataset_param.preprocess_parameters", "image_min_pixels", 1 << 20),
              HasSubstr("min_pixels above its max_pixels"));
  Json both = qwen();
  at(both, kBasic)["mask_history"] = true;
  EXPECT_THAT(refusal_of(both, kBasic, "train_on_prompt", true), HasSubstr("not both"));
  EXPECT_THAT(refusal_of(qwen(), kBasic, "enable_thinking", false),
              HasSubstr("write true, or template: qwen3_vl_nothink"));
  Json nothink = qwen();
  at(nothink, kBasic)["enable_thinking"] = false;
  at(nothink, kBasic)["template"] = "qwen3_vl_nothink";
  EXPECT_FALSE(read(nothink).text.enable_thinking);
}

TEST(DataConfig, RefusesPipelinesAndRepetitionsThatAreNotBuilt) {
  const auto with_step = [](const char* step) {
    Json json = internvl();
    at(json, "dataset_param.preprocess_parameters.train_pipeline")["image"].push_back(Json::parse(step));
    return refusal(json);
  };
  EXPECT_THAT(with_step(R"({"trans_type": "Flip"})"), HasSubstr("use Pad2Square, Resize, ToTensor or norm_fun"));
  EXPECT_THAT(with_step(R"({"trans_type": "Resize", "param": {"size": 224}})"), HasSubstr("image_size is 448"));
  EXPECT_THAT(with_step(R"({"trans_type": "Resize", "param": {"interpolation": "NEAREST"}})"), HasSubstr("BICUBIC"));
  EXPECT_THAT(with_step(R"({"trans_type": "norm_fun", "param": {"mean": [1, 2]}})"), HasSubstr("three numbers"));
  const auto repeated = [](double times) {
    Json json = internvl();
    json["dataset_param"]["basic_parameters"][0]["repeat_time"] = times;
    return refusal(json);
  };
  EXPECT_THAT(repeated(1.5), HasSubstr("use a share below 1, or a whole number up to 1000000"));
  EXPECT_THAT(repeated(0), HasSubstr("use a number above 0"));
  EXPECT_THAT(refusal_of(internvl(), "dataset_param", "down_sample_ratio", 0.3), HasSubstr("1 / n"));
  EXPECT_THAT(refusal_of(internvl(), "dataset_param", "min_dynamic_patch", 13), HasSubstr("at most max_dynamic_patch"));
}

TEST(DataConfigTable, HasEachKeyOfASectionOnce) {
  std::set<std::pair<KeySection, std::string_view>> seen;
  for (const DataKey& key : data_config_keys()) {
    EXPECT_TRUE(seen.insert({key.section, key.name}).second) << key.name;
    EXPECT_EQ(key.read == nullptr, key.effect == KeyEffect::kNone) << key.name;
    EXPECT_FALSE(key.about.empty()) << key.name;
  }
}

constexpr std::string_view kMark =
    "<!-- The table below is made from data_config_keys(); tests/multimodal/data_config_test.cpp compares them. -->\n";

std::string table_text() {
  std::string text = "\n| key | here | what it is, or why |\n| --- | --- | --- |\n";
  for (const DataKey& key : data_config_keys()) {
    const char* effect = key.effect == KeyEffect::kApplied ? "applied"
                         : key.effect == KeyEffect::kNone  ? "without effect"
                                                           : "one value";
    text += fmt::format("| `{}.{}` | {} | {} |\n", path_of(key.section), key.name, effect, key.about);
  }
  return text;
}

// With LOOM_WRITE_DOCS in the environment the table is written; it ends the page.
TEST(DataConfigTable, IsTheTableOfTheDocument) {
  const std::filesystem::path path = std::filesystem::path(LOOM_SOURCE_DIR) / "docs/multimodal-data.md";
  const std::string page = test::read_file(path);
  const std::size_t mark = page.find(kMark);
  ASSERT_NE(mark, page.npos);
  const std::string expected = page.substr(0, mark + kMark.size()) + table_text();
  if (std::getenv("LOOM_WRITE_DOCS") != nullptr) std::ofstream(path) << expected;
  EXPECT_EQ(test::read_file(path), expected) << "LOOM_WRITE_DOCS=1 multimodal_test writes it";
}

}  // namespace
}  // namespace loom::multimodal
