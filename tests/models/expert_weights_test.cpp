// Promise: experts' weights are read and written in both spellings, bit for bit, and each rank takes its own experts.
#include <cstring>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/nn/init.h"
#include "engine/nn/state_dict.h"
#include "models/decoder/decoder.h"
#include "models/hf/hf_folder.h"
#include "tests/models/test_rank.h"
#include "tests/support/boxes.h"
#include "tests/support/files.h"

namespace loom::models {
namespace {

// 4 layers of 8 experts, fused: gate_up_proj [8, 96, 64], down_proj [8, 64, 48].
std::filesystem::path fused_folder() {
  return std::filesystem::path(LOOM_SOURCE_DIR) / "tests/reference/training/qwen3moe_w2";
}
const std::string kExperts = "model.layers.2.mlp.experts";

std::shared_ptr<nn::Module> build() { return build_decoder(load_decoder_config(fused_folder())); }

std::shared_ptr<nn::Module> loaded(const std::filesystem::path& folder) {
  auto model = build();
  nn::materialize(*model);
  load_weights(*model, io::HfWeights(folder));
  return model;
}

// The reference's weights, written in a spelling.
std::filesystem::path written(const std::filesystem::path& folder, ExpertSpelling spelling) {
  write_hf_folder(folder, load_decoder_config(fused_folder()), loaded(fused_folder())->named_parameters(), spelling);
  return folder;
}

std::vector<float> floats_of(const io::StoredTensor& stored) {
  std::vector<float> values(stored.bytes.size() / sizeof(float));
  std::memcpy(values.data(), stored.bytes.data(), stored.bytes.size());
  return values;
}

void expect_same_parameters(nn::Module& actual, nn::Module& expected) {
  const auto a = actual.named_parameters(), e = expected.named_parameters();
  ASSERT_EQ(a.size(), e.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].second.to_vector<float>(), e[i].second.to_vector<float>()) << e[i].first;
  }
}

TEST(ExpertParts, AreThePublishedNamesInOrderOfTheirBytes) {
  const auto parts = expert_parts("mlp.experts.gate_up_proj", {2, 6, 5});
  ASSERT_EQ(parts.size(), 4u);
  EXPECT_EQ(parts[1].name, "mlp.experts.0.up_proj.weight");
  EXPECT_EQ(parts[1].expert, 0);
  EXPECT_EQ(parts[1].row, 3);
  EXPECT_EQ(parts[1].shape, (Shape{3, 5}));
  EXPECT_EQ(parts[2].name, "mlp.experts.1.gate_proj.weight");
  EXPECT_EQ(expert_parts("mlp.experts.down_proj", {2, 5, 3})[1].name, "mlp.experts.1.down_proj.weight");
}

TEST(ExpertParts, AreOfExpertsOnly) {
  EXPECT_TRUE(expert_parts("mlp.down_proj", {2, 5, 3}).empty());
  EXPECT_TRUE(expert_parts("mlp.other_experts.down_proj", {2, 5, 3}).empty());
  EXPECT_TRUE(expert_parts("mlp.experts.bias", {2, 5, 3}).empty());
  EXPECT_TRUE(expert_parts("mlp.experts.down_proj", {5, 3}).empty());
}

TEST(ExpertWeights, AreWrittenAsPublishedUnlessAskedOtherwise) {
  const test::TestRank rank;
  const auto folder = test::fresh_folder();
  write_hf_folder(folder, load_decoder_config(fused_folder()), loaded(fused_folder())->named_parameters());
  const io::HfWeights weights(folder);
  EXPECT_EQ(weights.find(kExperts + ".gate_up_proj"), nullptr);
  EXPECT_EQ(weights.at(kExperts + ".7.gate_proj.weight").shape, (Shape{48, 64}));
  EXPECT_EQ(weights.at(kExperts + ".7.up_proj.weight").shape, (Shape{48, 64}));
  EXPECT_EQ(weights.at(kExperts + ".7.down_proj.weight").shape, (Shape{64, 48}));
  EXPECT_EQ(weights.names().size(), 47u - 8 + 4 * 8 * 3);
}

// transformers 5 chunks gate_up_proj's result into gate and up: gate is its first half.
TEST(ExpertWeights, PerExpertHoldTheRowsOfTheFusedTensor) {
  const test::TestRank rank;
  const io::HfWeights fused(fused_folder());
  const io::HfWeights published(written(test::fresh_folder(), ExpertSpelling::kPerExpert));
  const std::vector<float> both = floats_of(fused.at(kExperts + ".gate_up_proj"));
  const std::vector<float> gate = floats_of(published.at(kExperts + ".3.gate_proj.weight"));
  const std::vector<float> up = floats_of(published.at(kExperts + ".3.up_proj.weight"));
  const auto expert = both.begin() + 3 * 96 * 64;
  EXPECT_TRUE(std::equal(gate.begin(), gate.end(), expert));
  EXPECT_TRUE(std::equal(up.begin(), up.end(), expert + 48 * 64));
}

TEST(ExpertWeights, SurviveARoundTripThroughBothSpellings) {
  const test::TestRank rank;
  const auto reference = loaded(fused_folder());
  const auto folder = test::fresh_folder();
  const auto published = loaded(written(folder / "published", ExpertSpelling::kPerExpert));
  expect_same_parameters(*published, *reference);
  write_hf_folder(folder / "fused", load_decoder_config(folder / "published"), published->named_parameters(),
                  ExpertSpelling::kFused);
  expect_same_parameters(*loaded(folder / "fused"), *reference);
  EXPECT_TRUE(load_decoder_config(folder / "fused") == load_decoder_config(fused_folder()));
  const io::HfWeights before(fused_folder()), after(folder / "fused");
  ASSERT_EQ(after.names(), before.names());
  for (const std::string& name : before.names())
    EXPECT_EQ(floats_of(after.at(name)), floats_of(before.at(name))) << name;
}

TEST(ExpertWeights, SpellingIsSeenInAFolder) {
  const test::TestRank rank;
  const auto folder = test::fresh_folder();
  EXPECT_EQ(expert_spelling(io::HfWeights(fused_folder())), ExpertSpelling::kFused);
  EXPECT_EQ(expert_spelling(io::HfWeights(written(folder, ExpertSpelling::kPerExpert))), ExpertSpelling::kPerExpert);
}

TEST(ExpertWeights, ARankReadsItsOwnExpertsInEitherSpelling) {
  const test::TestRank rank;
  const auto whole = loaded(fused_folder());
  const auto published = written(test::fresh_folder(), ExpertSpelling::kPerExpert);
  for (const auto& folder : {fused_folder(), published}) {
    const auto part = build();
    for (auto& [path, slot] : part->named_slots()) {  // the middle third: of 8 experts 2 and 3
      slot->shard.offset[0] = slot->shard.global_shape[0] / 3;
      Shape rows = slot->shard.global_shape;
      rows[0] = slot->shard.global_shape[0] / 3;
      slot->value = Tensor::empty(rows, DType::kF32);
    }
    load_weights(*part, io::HfWeights(folder));
    const auto slots = part->named_slots(), whole_slots = whole->named_slots();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const nn::ParamSlot& slot = *slots[i].second;
      const Tensor expected = whole_slots[i].second->value.rows(slot.shard.offset[0], slot.value.shape()[0]);
      EXPECT_EQ(slot.value.to_vector<float>(), expected.to_vector<float>()) << slots[i].first << " of " << folder;
    }
  }
}

TEST(ExpertWeights, ARankReadsItsBoxOfExpertsInEitherSpelling) {
  const test::TestRank rank;
  const auto whole = loaded(fused_folder());
  const auto published = written(test::fresh_folder(), ExpertSpelling::kPerExpert);
  for (const auto& folder : {fused_folder(), published}) {
    const auto part = build();
    for (auto& [path, slot] : part->named_slots()) {  // cut on every dim; of gate_up_proj across gate and up
      const Shape& shape = slot->shard.global_shape;
      Offset offset;
      Shape box = shape;
      for (int d = 0; d < shape.ndim(); ++d) {
        offset.push_back(shape[d] / 3);
        box[d] = shape[d] / 2;
      }
      test::give_box(*slot, offset, box);
    }
    load_weights(*part, io::HfWeights(folder));
    const auto slots = part->named_slots(), whole_slots = whole->named_slots();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const nn::ParamSlot& slot = *slots[i].second;
      EXPECT_EQ(slot.value.to_vector<float>(),
                test::box_of(whole_slots[i].second->value.to_vector<float>(), slot.shard.global_shape,
                             slot.shard.offset, slot.value.shape()))
          << slots[i].first << " of " << folder;
    }
  }
}

std::string refusal(const std::filesystem::path& folder, std::vector<io::TensorToWrite> tensors) {
  io::write_safetensors(folder / "model.safetensors", std::move(tensors));
  const auto model = build();
  const std::string message = test::message_of<ConfigError>([&] { check_weights(*model, io::HfWeights(folder)); });
  return message.substr(folder.string().size() + 2);
}

std::vector<io::TensorToWrite> tensors_of(const io::HfWeights& weights) {
  std::vector<io::TensorToWrite> tensors;
  for (const std::string& name : weights.names()) {
    const io::StoredTensor& stored = weights.at(name);
    tensors.push_back({stored.name, stored.dtype, stored.shape, stored.bytes});
  }
  return tensors;
}

TEST(ExpertSpelling, OfMixtralHasNamesOfItsOwn) {
  const std::string layer = "model.layers.3.";
  for (const auto& [qwen, mixtral] : std::vector<std::pair<std::string, std::string>>{
           {"mlp.gate.weight", "block_sparse_moe.gate.weight"},
           {"mlp.experts.7.gate_proj.weight", "block_sparse_moe.experts.7.w1.weight"},
           {"mlp.experts.7.up_proj.weight", "block_sparse_moe.experts.7.w3.weight"},
           {"mlp.experts.0.down_proj.weight", "block_sparse_moe.experts.0.w2.weight"}}) {
    EXPECT_EQ(mixtral_spelling(layer + qwen), layer + mixtral);
    EXPECT_EQ(qwen_spelling(layer + mixtral), layer + qwen);
  }
  for (const char* other : {"model.layers.3.mlp.experts.gate_up_proj", "model.layers.3.mlp.up_proj.weight",
                            "model.layers.3.mlp.shared_expert.up_proj.weight", "lm_head.weight"}) {
    EXPECT_EQ(mixtral_spelling(other), other);
    EXPECT_EQ(qwen_spelling(other), other);
  }
}

// Of families whose references are fused; DeepSeek-V3's have a buffer too.
TEST(ExpertWeights, OfTheOtherFamiliesSurviveARoundTripThroughBothSpellings) {
  const test::TestRank rank;
  for (const auto& [name, published] : {std::pair("mixtral", "model.layers.2.block_sparse_moe.experts.3.w3.weight"),
                                        std::pair("qwen2_moe", "model.layers.2.mlp.experts.3.up_proj.weight"),
                                        std::pair("deepseek_v3", "model.layers.2.mlp.experts.3.up_proj.weight")}) {
    const auto reference = std::filesystem::path(LOOM_SOURCE_DIR) / "tests/reference/logits" / name;
    const auto config = load_decoder_config(reference);
    const auto loaded_from = [&](const std::filesystem::path& folder) {
      auto model = build_decoder(config);
      nn::materialize(*model);
      load_weights(*model, io::HfWeights(folder));
      return model;
    };
    const auto folder = test::fresh_folder();
    const auto model = loaded_from(reference);
    auto tensors = model->named_parameters();
    for (const auto& buffer : nn::persistent_buffers(*model)) tensors.push_back(buffer);
    write_hf_folder(folder, config, tensors);
    EXPECT_NE(io::HfWeights(folder).find(published), nullptr) << published;
    const auto again = loaded_from(folder);
    expect_same_parameters(*again, *model);
    const auto before = nn::persistent_buffers(*model), after = nn::persistent_buffers(*again);
    ASSERT_EQ(after.size(), before.size());
    EXPECT_EQ(before.size(), name == std::string("deepseek_v3") ? 2u : 0u);
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_EQ(after[i].second.to_vector<float>(), before[i].second.to_vector<float>()) << before[i].first;
    }
    write_hf_folder(folder, config, tensors, ExpertSpelling::kFused);
    EXPECT_EQ(io::HfWeights(folder).names(), io::HfWeights(reference).names());
  }
}

TEST(DeepseekV3Folder, MayHaveTheLayerOfTheSecondTokenThatTheModelIsBuiltWithout) {
  const test::TestRank rank;
  const auto reference = std::filesystem::path(LOOM_SOURCE_DIR) / "tests/reference/logits/deepseek_v3";
  const auto model = build_decoder(load_decoder_config(reference));  // of 3 layers
  const io::HfWeights weights(reference);
  const auto folder = test::fresh_folder();
  const auto with = [&](const std::string& name) {
    auto tensors = tensors_of(weights);
    tensors.push_back(tensors.front());
    tensors.back().name = name;
    io::write_safetensors(folder / "model.safetensors", std::move(tensors));
    return io::HfWeights(folder);
  };
  EXPECT_NO_THROW(check_weights(*model, with("model.layers.3.eh_proj.weight")));
  const std::string error =
      test::message_of<ConfigError>([&] { check_weights(*model, with("model.layers.4.eh_proj.weight")); });
  EXPECT_EQ(error, folder.string() +
                       ": the model of config.json has no 'model.layers.4.eh_proj.weight' (1 such in the "
                       "safetensors file); they are of different models");
}

TEST(ExpertWeights, AMissingExpertIsRefusedByItsName) {
  const test::TestRank rank;
  const auto folder = test::fresh_folder();
  const io::HfWeights published(written(folder / "published", ExpertSpelling::kPerExpert));
  auto tensors = tensors_of(published);
  std::erase_if(tensors, [](const auto& tensor) { return tensor.name == kExperts + ".5.up_proj.weight"; });
  EXPECT_EQ(refusal(folder, std::move(tensors)),
            "tensor 'model.layers.2.mlp.experts.5.up_proj.weight' [48, 64] is missing from the safetensors file, which "
            "has 134 tensors; the nearest is 'model.layers.0.mlp.experts.5.up_proj.weight'");
}

TEST(ExpertWeights, AnExpertTheModelHasNotIsRefused) {
  const test::TestRank rank;
  const auto folder = test::fresh_folder();
  const io::HfWeights published(written(folder / "published", ExpertSpelling::kPerExpert));
  auto tensors = tensors_of(published);
  io::TensorToWrite extra = tensors.back();
  extra.name = kExperts + ".8.up_proj.weight";
  tensors.push_back(extra);
  EXPECT_EQ(refusal(folder, std::move(tensors)),
            "the model of config.json has no 'model.layers.2.mlp.experts.8.up_proj.weight' (1 such in the safetensors "
            "file); they are of different models");
}

TEST(ExpertWeights, AnExpertOfAnotherShapeIsRefusedWithBoth) {
  const test::TestRank rank;
  const auto folder = test::fresh_folder();
  const io::HfWeights published(written(folder / "published", ExpertSpelling::kPerExpert));
  auto tensors = tensors_of(published);
  for (auto& tensor : tensors) {
    if (tensor.name == kExperts + ".5.up_proj.weight") tensor.shape = {64, 48};
  }
  EXPECT_EQ(refusal(folder, std::move(tensors)),
            "tensor 'model.layers.2.mlp.experts.5.up_proj.weight': config.json says [48, 64], the safetensors file has "
            "[64, 48]; they are of different models");
}

TEST(ExpertWeights, InNeitherSpellingAreRefusedUnderTheModulesName) {
  const test::TestRank rank;
  const io::HfWeights fused(fused_folder());
  auto tensors = tensors_of(fused);
  std::erase_if(tensors, [](const auto& tensor) { return tensor.name == kExperts + ".down_proj"; });
  EXPECT_EQ(refusal(test::fresh_folder(), std::move(tensors)),
            "tensor 'model.layers.2.mlp.experts.down_proj' [8, 64, 48] is missing from the safetensors file, which has "
            "46 tensors; the nearest is 'model.layers.0.mlp.experts.down_proj'");
}

}  // namespace
}  // namespace loom::models
