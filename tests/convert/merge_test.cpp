// Promise: merging adds scale * B A to the weights an adapter names, in fp32 and rounded once, and to no other byte;
//          ties that the adapter breaks become two tensors; a merge that fails leaves nothing.
// World:   folders of the test's own, with bytes from a formula; no rank.
#include "engine/convert/hf/merge.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "engine/core/error.h"
#include "engine/formats/safetensors/hf_weights.h"
#include "tests/support/files.h"

namespace loom::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

using Numbers = std::vector<float>;

Numbers numbers(std::size_t count, std::uint32_t seed) {
  Numbers values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>((seed * 31 + i * 17) % 64) / 32.0F - 1.0F;
  return values;
}

io::TensorToWrite fp32(const std::string& name, const Shape& shape, const Numbers& values) {
  return {name, DType::kF32, shape, std::as_bytes(std::span(values))};
}

Numbers read(const fs::path& folder, const std::string& name) {
  const io::HfWeights weights(folder);
  const io::StoredTensor& stored = weights.at(name);
  EXPECT_EQ(stored.dtype, DType::kF32);
  Numbers values(stored.bytes.size() / sizeof(float));
  std::memcpy(values.data(), stored.bytes.data(), stored.bytes.size());
  return values;
}

class MergeTest : public ::testing::Test {
 protected:
  MergeTest() : folder_(test::fresh_folder()) {
    options_ = {.base = folder_ / "base", .adapter = folder_ / "adapter", .save = folder_ / "merged"};
    write_base(R"({"model_type": "qwen2", "tie_word_embeddings": true})");
    write_adapter({{"r", 2}, {"lora_alpha", 3}}, "model.q_proj", {6, 4}, {});
  }

  void write_base(const std::string& config) const {
    fs::create_directories(options_.base);
    test::write_file(options_.base / "config.json", config);
    test::write_file(options_.base / "tokenizer.json", "{}");
    io::write_safetensors(options_.base / "model.safetensors",
                          {fp32("model.q_proj.weight", {6, 4}, w_), fp32("model.norm.weight", {4}, norm_),
                           fp32("model.embed_tokens.weight", {5, 4}, embed_)});
  }

  // Of a weight [out, in] beside `module`; `more` are tensors of modules_to_save.
  void write_adapter(nlohmann::json config, const std::string& module, std::pair<int, int> out_in,
                     const std::vector<io::TensorToWrite>& more) {
    config["peft_type"] = "LORA";
    if (!config.contains("target_modules")) config["target_modules"] = {"q_proj"};
    test::write_file(options_.adapter / "adapter_config.json", config.dump());
    const auto [out, in] = out_in;
    a_ = numbers(2 * static_cast<std::size_t>(in), 5);
    b_ = numbers(2 * static_cast<std::size_t>(out), 7);
    std::vector<io::TensorToWrite> tensors = more;
    tensors.push_back(fp32("base_model.model." + module + ".lora_A.weight", {2, in}, a_));
    tensors.push_back(fp32("base_model.model." + module + ".lora_B.weight", {out, 2}, b_));
    io::write_safetensors(options_.adapter / "adapter_model.safetensors", std::move(tensors));
  }

  // W + scale * B A, element [i, j] of [out, in].
  float merged(float w, double scale, std::size_t i, std::size_t j, std::size_t in) const {
    double sum = 0;
    for (std::size_t k = 0; k < 2; ++k) sum += static_cast<double>(b_[i * 2 + k]) * a_[k * in + j];
    return static_cast<float>(w + scale * sum);
  }

  std::string refusal() const {
    const std::string text = test::message_of<ConfigError>([&] { merge(options_); });
    EXPECT_FALSE(fs::exists(options_.save));
    return text;
  }

  const Numbers w_ = numbers(24, 1), norm_ = numbers(4, 2), embed_ = numbers(20, 3);
  const fs::path folder_;
  MergeAdapter options_;
  Numbers a_, b_;
};

TEST_F(MergeTest, AddsTheUpdateAndNothingElse) {
  std::uint64_t told = 0, all = 0;
  const Merged done = merge(options_, [&](std::uint64_t bytes, std::uint64_t of) { told = bytes, all = of; });
  EXPECT_EQ(done.adapted, 1);
  EXPECT_EQ(done.tensors, 3);
  EXPECT_EQ(told, all);
  EXPECT_EQ(all, (24u + 4 + 20) * 4);
  const Numbers values = read(options_.save, "model.q_proj.weight");
  for (std::size_t i = 0; i < 6; ++i) {
    for (std::size_t j = 0; j < 4; ++j) EXPECT_EQ(values[i * 4 + j], merged(w_[i * 4 + j], 1.5, i, j, 4));
  }
  EXPECT_EQ(read(options_.save, "model.norm.weight"), norm_);
  EXPECT_EQ(read(options_.save, "model.embed_tokens.weight"), embed_);
  EXPECT_EQ(test::read_file(options_.save / "config.json"), test::read_file(options_.base / "config.json"));
  EXPECT_TRUE(fs::exists(options_.save / "tokenizer.json"));
}

TEST_F(MergeTest, RsloraScalesByTheRootOfTheRank) {
  write_adapter({{"r", 2}, {"lora_alpha", 3}, {"use_rslora", true}}, "model.q_proj", {6, 4}, {});
  merge(options_);
  const Numbers values = read(options_.save, "model.q_proj.weight");
  EXPECT_NEAR(values[0], merged(w_[0], 3 / std::sqrt(2.0), 0, 0, 4), 1e-6);
}

TEST_F(MergeTest, AConv1DIsTransposed) {
  write_base(R"({"model_type": "gpt2"})");
  write_adapter({{"r", 2}, {"lora_alpha", 2}, {"fan_in_fan_out", true}}, "model.q_proj", {4, 6}, {});
  merge(options_);
  const Numbers values = read(options_.save, "model.q_proj.weight");
  for (std::size_t j = 0; j < 6; ++j) {
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(values[j * 4 + i], merged(w_[j * 4 + i], 1.0, i, j, 6));
  }
}

TEST_F(MergeTest, ATieThatTheAdapterBreaksBecomesTwoTensors) {
  const Numbers head = numbers(20, 11);
  write_adapter({{"r", 2}, {"lora_alpha", 3}, {"modules_to_save", {"lm_head"}}}, "model.q_proj", {6, 4},
                {fp32("base_model.model.lm_head.weight", {5, 4}, head)});
  const Merged done = merge(options_);
  EXPECT_EQ(done.replaced, 1);
  EXPECT_EQ(read(options_.save, "lm_head.weight"), head);
  EXPECT_EQ(read(options_.save, "model.embed_tokens.weight"), embed_);
  EXPECT_EQ(nlohmann::json::parse(test::read_file(options_.save / "config.json"))["tie_word_embeddings"], false);
}

// OpenGVLab's InternVL has q, k and v in one tensor.
TEST_F(MergeTest, RowsOfAJoinedTensorGetTheirUpdate) {
  const std::string joined = "vision_model.encoder.layers.0.attn.qkv.weight";
  const Numbers qkv = numbers(18 * 4, 9);
  io::write_safetensors(options_.base / "model.safetensors",
                        {fp32(joined, {18, 4}, qkv), fp32("mlp1.0.weight", {4}, norm_),
                         fp32("language_model.model.embed_tokens.weight", {5, 4}, embed_)});
  const std::string k_proj = "model.vision_tower.encoder.layer.0.attention.k_proj";
  write_adapter({{"r", 2}, {"lora_alpha", 3}, {"target_modules", {"k_proj"}}}, k_proj, {6, 4}, {});
  EXPECT_EQ(merge(options_).adapted, 1);
  const Numbers values = read(options_.save, joined);
  for (std::size_t i = 0; i < 18; ++i) {
    for (std::size_t j = 0; j < 4; ++j) {
      const float w = qkv[i * 4 + j];
      EXPECT_EQ(values[i * 4 + j], i < 6 || i >= 12 ? w : merged(w, 1.5, i - 6, j, 4)) << i << ", " << j;
    }
  }
  EXPECT_EQ(read(options_.save, "language_model.model.embed_tokens.weight"), embed_);

  fs::remove_all(options_.save);
  const Numbers whole = numbers(24, 13);
  write_adapter({{"r", 2}, {"lora_alpha", 3}, {"modules_to_save", {"q_proj"}}}, k_proj, {6, 4},
                {fp32("base_model.model.model.vision_tower.encoder.layer.0.attention.q_proj.weight", {6, 4}, whole)});
  EXPECT_THAT(refusal(), HasSubstr("'model.vision_tower.encoder.layer.0.attention.q_proj.weight' replaces a part of '" +
                                   joined + "' of " + options_.base.string() +
                                   ", which is not built; take it out of modules_to_save, or use a base in the layout "
                                   "of transformers"));
}

TEST_F(MergeTest, RefusesOtherBases) {
  write_adapter({{"r", 2}, {"lora_alpha", 3}}, "model.q_prj", {6, 4}, {});
  EXPECT_THAT(refusal(), HasSubstr("the adapter has 'model.q_prj.weight', which is not among the 3 tensors of"));
  write_adapter({{"r", 2}, {"lora_alpha", 3}}, "model.q_proj", {6, 8}, {});
  EXPECT_THAT(refusal(), HasSubstr("is of a weight [6, 8], and 'model.q_proj.weight' of"));
  write_adapter({{"r", 2}, {"lora_alpha", 3}, {"fan_in_fan_out", true}}, "model.q_proj", {4, 6}, {});
  EXPECT_THAT(refusal(), HasSubstr("fan_in_fan_out is true, and the model_type of"));
  fs::remove(options_.base / "config.json");
  EXPECT_THAT(refusal(), HasSubstr("--base: "));
}

TEST_F(MergeTest, AStoppedMergeLeavesNoFile) {
  const auto stop = [](std::uint64_t, std::uint64_t) { raise<Error>("stopped"); };
  EXPECT_EQ(test::message_of<Error>([&] { merge(options_, stop); }), "stopped");
  EXPECT_TRUE(fs::is_empty(options_.save));  // made before work starts, and free for the next try
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(folder_)) left.insert(entry.path().filename());
  EXPECT_EQ(left, (std::set<std::string>{"adapter", "base", "merged"}));
  EXPECT_EQ(merge(options_).adapted, 1);
}

}  // namespace
}  // namespace loom::checkpoint
