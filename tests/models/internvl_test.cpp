// Promise: InternVL's tree has Hugging Face's paths, shapes and class names; checkpoints of every spelling load, and
//          the one that a folder came with is written; images of any size reach the decoder, gradients reach the
//          images' tower, and a frozen tower records nothing.
#include "models/internvl/internvl.h"

#include <algorithm>
#include <cmath>
#include <gmock/gmock.h>
#include <map>
#include <set>

#include "engine/core/error.h"
#include "engine/core/rng.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/nn/functional.h"
#include "engine/nn/init.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "models/hf/hf_folder.h"
#include "models/internvl/stored_names.h"
#include "tests/models/test_rank.h"
#include "tests/support/files.h"

namespace loom::models {
namespace {

const std::filesystem::path kCase = std::filesystem::path(LOOM_SOURCE_DIR) / "tests/reference/training/internvl_w2";
const std::filesystem::path kChat = std::filesystem::path(LOOM_SOURCE_DIR) / "tests/reference/vision/internvl";

InternVLConfig config() { return load_internvl_config(kCase); }

using Shapes = std::map<std::string, std::vector<std::int64_t>>;

Shapes shapes_of(nn::Module& model) {
  Shapes shapes;
  for (const auto& [path, slot] : model.named_slots()) shapes[path] = slot->shard.global_shape.sizes();
  return shapes;
}

Shapes shapes_with(const std::function<void(InternVLConfig&)>& change) {
  InternVLConfig changed = config();
  change(changed);
  return shapes_of(*build_internvl(changed));
}

std::shared_ptr<InternVL> loaded() {
  const auto model = build_internvl(config());
  nn::materialize(*model);
  load_weights(*model, io::HfWeights(kCase));
  return model;
}

// B sequences of S tokens, each with one image at positions 1 to 4; the rest counts up.
struct Batch {
  Tensor input_ids;
  Tensor pixel_values;
};
Batch batch(std::int64_t sequences = 2, std::int64_t length = 8, DType dtype = DType::kF32) {
  const Tensor ids = Tensor::host({sequences, length}, DType::kI32);
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    const std::int64_t position = i % length;
    ids.data<std::int32_t>()[i] = position >= 1 && position <= 4 ? 250 : static_cast<std::int32_t>(3 + i);
  }
  std::vector<double> pixels;
  for (std::int64_t i = 0; i < sequences * 3 * 32 * 32; ++i)
    pixels.push_back(normal_at(5, static_cast<std::uint64_t>(i)));
  return {ids, Tensor::from(pixels, {sequences, 3, 32, 32}, dtype)};
}

// --- The tree

TEST(InternVLTree, HasTheParametersOfTheReferenceFileAndNoBytes) {
  const auto model = build_internvl(config());
  Shapes stored;
  const io::SafetensorsFile file(kCase / "model.safetensors");
  for (const auto& tensor : file.tensors()) stored[tensor.name] = tensor.shape.sizes();
  EXPECT_EQ(shapes_of(*model), stored);
  for (const auto& [path, slot] : model->named_slots()) EXPECT_TRUE(slot->value.is_meta()) << path;
}

TEST(InternVLTree, HasTheClassesOfTransformers) {
  const std::vector<std::pair<std::string, std::string>> expected{
      {"", "InternVLForConditionalGeneration"},
      {"model", "InternVLModel"},
      {"model.vision_tower", "InternVLVisionModel"},
      {"model.vision_tower.embeddings", "InternVLVisionEmbeddings"},
      {"model.vision_tower.embeddings.patch_embeddings", "InternVLVisionPatchEmbeddings"},
      {"model.vision_tower.embeddings.patch_embeddings.projection", "Conv2d"},
      {"model.vision_tower.encoder", "InternVLVisionEncoder"},
      {"model.vision_tower.encoder.layer", "ModuleList"},
      {"model.vision_tower.encoder.layer.1", "InternVLVisionLayer"},
      {"model.vision_tower.encoder.layer.1.attention", "InternVLVisionAttention"},
      {"model.vision_tower.encoder.layer.1.mlp", "InternVLVisionMLP"},
      {"model.vision_tower.encoder.layer.1.layernorm_before", "LayerNorm"},
      {"model.multi_modal_projector", "InternVLMultiModalProjector"},
      {"model.language_model", "Qwen2Model"},
      {"model.language_model.layers.2", "Qwen2DecoderLayer"},
      {"model.language_model.rotary_emb", "Qwen2RotaryEmbedding"},
      {"lm_head", "Linear"}};
  const auto model = build_internvl(config());
  for (const auto& [path, type] : expected) {
    ASSERT_NE(model->find(path), nullptr) << path;
    EXPECT_EQ(model->find(path)->type_name(), type) << path;
  }
}

TEST(InternVLTree, FollowsTheConfig) {
  const Shapes plain = shapes_of(*build_internvl(config()));
  const Shapes qk = shapes_with([](InternVLConfig& c) { c.vision.use_qk_norm = true; });
  EXPECT_EQ(qk.size(), plain.size() + 4);  // q and k in two layers
  EXPECT_EQ(qk.at("model.vision_tower.encoder.layer.0.attention.q_norm.weight"), std::vector<std::int64_t>{48});
  const Shapes rms = shapes_with([](InternVLConfig& c) { c.vision.rms_norm = true; });
  EXPECT_EQ(rms.size(), plain.size() - 4);  // two norms a layer have no bias
  const Shapes pooled = shapes_with([](InternVLConfig& c) { c.vision.use_mean_pooling = false; });
  EXPECT_TRUE(pooled.contains("model.vision_tower.layernorm.bias"));
  const Shapes unplaced = shapes_with([](InternVLConfig& c) { c.vision.use_absolute_position_embeddings = false; });
  EXPECT_FALSE(unplaced.contains("model.vision_tower.embeddings.position_embeddings"));
  const Shapes unbiased = shapes_with([](InternVLConfig& c) { c.vision.attention_bias = false; });
  EXPECT_EQ(unbiased.size(), plain.size() - 6);  // q, k, v in two layers; the projection keeps its own
  InternVLConfig tied = config();
  tied.text.tie_word_embeddings = true;
  EXPECT_EQ(build_internvl(tied)->named_parameters().size(), plain.size() - 1);
}

TEST(InternVLTree, StartsLayerScalesAtTheirConfiguredValueAndPositionsAtZero) {
  const test::TestRank rank;
  const auto model = build_internvl(config());
  nn::materialize(*model);
  nn::init_weights(*model, 1);
  for (const auto& [path, slot] : model->named_slots()) {
    const std::vector<float> values = slot->value.to_vector<float>();
    const bool scale = path.find("lambda_") != std::string::npos;
    if (scale || path.find("position_embeddings") != std::string::npos) {
      EXPECT_THAT(values, ::testing::Each(scale ? 0.5f : 0.0f)) << path;
    }
  }
}

TEST(InternVLTowers, AreFrozenAsTheConfigSays) {
  InternVLConfig frozen = config();
  frozen.vision.freeze = true;
  const auto model = build_internvl(frozen);
  EXPECT_TRUE(model->is_frozen("vision_tower"));
  EXPECT_FALSE(model->is_frozen("multi_modal_projector"));
  EXPECT_FALSE(model->is_frozen("language_model"));
}

// --- Checkpoints

class Spelling
    : public ::testing::TestWithParam<std::pair<const char*, std::vector<std::pair<std::string, std::string>>>> {};
INSTANTIATE_TEST_SUITE_P(InternVL, Spelling,
                         ::testing::Values(
                             // Before transformers 4.52.
                             std::pair{"transformers4",
                                       std::vector<std::pair<std::string, std::string>>{
                                           {"model.language_model", "language_model.model"},
                                           {"model.vision_tower", "vision_tower"},
                                           {"model.multi_modal_projector", "multi_modal_projector"},
                                           {"lm_head", "language_model.lm_head"}}},
                             std::pair{"vision_model",
                                       std::vector<std::pair<std::string, std::string>>{
                                           {"model.language_model", "language_model.model"},
                                           {"model.vision_tower.encoder.layer", "vision_model.encoder.layers"},
                                           {"model.vision_tower", "vision_model"}}}),
                         [](const auto& info) { return info.param.first; });

TEST_P(Spelling, OfStoredNamesLoadsTheSameValues) {
  const test::TestRank rank;
  const io::SafetensorsFile file(kCase / "model.safetensors");
  std::vector<io::TensorToWrite> renamed;
  for (const auto& tensor : file.tensors()) {
    std::string name = tensor.name;
    for (const auto& [from, to] : GetParam().second) {
      if (name.starts_with(from + ".")) {
        name = to + name.substr(from.size());
        break;
      }
    }
    renamed.push_back({name, tensor.dtype, tensor.shape, tensor.bytes});
  }
  const auto folder = test::fresh_folder();
  io::write_safetensors(folder / "model.safetensors", renamed);
  const auto model = build_internvl(config());
  nn::materialize(*model);
  load_weights(*model, io::HfWeights(folder));
  const auto expected = loaded();
  const auto slots = model->named_slots(), expected_slots = expected->named_slots();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    ASSERT_EQ(slots[i].second->value.to_vector<float>(), expected_slots[i].second->value.to_vector<float>())
        << slots[i].first;
  }
}

TEST(InternVLFolder, IsReadBackAsItWasWritten) {
  const test::TestRank rank;
  const auto model = loaded();
  const auto folder = test::fresh_folder() / "saved";
  write_hf_folder(folder, config(), model->named_parameters());
  EXPECT_TRUE(load_internvl_config(folder) == config());
  const io::SafetensorsFile before(kCase / "model.safetensors"), after(folder / "model.safetensors");
  ASSERT_EQ(after.tensors().size(), before.tensors().size());
  for (const auto& stored : before.tensors()) {
    const auto& saved = after.at(stored.name);
    ASSERT_EQ(saved.shape, stored.shape);
    EXPECT_TRUE(std::ranges::equal(saved.bytes, stored.bytes)) << stored.name;
  }
}

// --- OpenGVLab's names

TEST(InternVLChatFolder, HasTheNamesOfEveryParameter) {
  const auto model = build_internvl(load_internvl_config(kChat));
  const io::HfWeights weights(kChat);
  std::set<std::string> stored;
  for (const auto& [path, slot] : model->named_slots()) {
    const StoredPart part = internvl_chat_part(path);
    stored.insert(part.name);
    EXPECT_EQ(internvl_chat_paths(part.name).at(static_cast<std::size_t>(part.part)), path);
  }
  const std::vector<std::string> names = weights.names();
  EXPECT_EQ(stored, (std::set<std::string>(names.begin(), names.end())));
}

TEST(InternVLChatFolder, IsReadBackAsItWasWritten) {
  const test::TestRank rank;
  const InternVLConfig chat = load_internvl_config(kChat);
  const auto model = build_internvl(chat);
  nn::materialize(*model);
  load_weights(*model, io::HfWeights(kChat));
  std::vector<std::pair<std::string, Tensor>> halves;
  for (const auto& [path, parameter] : model->named_parameters()) {
    const std::vector<float> values = parameter.to_vector<float>();
    halves.emplace_back(
        path, Tensor::from(std::vector<double>(values.begin(), values.end()), parameter.shape(), DType::kBF16));
  }
  const auto folder = test::fresh_folder() / "saved";
  write_hf_folder(folder, chat, halves);
  EXPECT_TRUE(load_internvl_config(folder) == chat);
  const io::SafetensorsFile before(kChat / "model.safetensors"), after(folder / "model.safetensors");
  ASSERT_EQ(after.tensors().size(), before.tensors().size());
  for (const auto& stored : before.tensors()) {
    const auto& saved = after.at(stored.name);
    ASSERT_EQ(saved.shape, stored.shape) << stored.name;
    EXPECT_TRUE(std::ranges::equal(saved.bytes, stored.bytes)) << stored.name;
  }
}

// q, k and v of 32 rows each in one tensor.
TEST(InternVLChatFolder, RefusesATensorOfTooFewRows) {
  const io::SafetensorsFile file(kChat / "model.safetensors");
  const std::string fused = "vision_model.encoder.layers.1.attn.qkv.bias";
  std::vector<io::TensorToWrite> cut;
  for (const auto& tensor : file.tensors()) {
    cut.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.bytes});
    if (tensor.name == fused) cut.back() = {fused, tensor.dtype, {64}, tensor.bytes.first(128)};
  }
  const auto folder = test::fresh_folder();
  io::write_safetensors(folder / "model.safetensors", cut);
  const auto model = build_internvl(load_internvl_config(kChat));
  EXPECT_EQ(test::message_of<ConfigError>([&] { check_weights(*model, io::HfWeights(folder)); }),
            folder.string() + ": tensor '" + fused +
                "': config.json says [96], the safetensors file has [64]; they are of different models");
}

// --- Calls

TEST(InternVLCall, GivesLogitsThatDependOnTheImage) {
  const test::TestRank rank;
  const auto model = loaded();
  const Batch b = batch();
  const autograd::NoGrad no_grad;
  const Tensor logits = (*model)(b.input_ids, b.pixel_values);
  EXPECT_EQ(logits.shape(), (Shape{2, 8, 256}));
  const Tensor other = (*model)(b.input_ids, Tensor::zeros({2, 3, 32, 32}, DType::kF32));
  const std::vector<float> with = logits.to_vector<float>(), without = other.to_vector<float>();
  EXPECT_TRUE(std::equal(with.begin(), with.begin() + 256, without.begin()));  // before the image
  EXPECT_FALSE(std::equal(with.begin() + 256, with.begin() + 512, without.begin() + 256));
}

TEST(InternVLCall, OnTextAloneIsTheDecoders) {
  const test::TestRank rank;
  const auto model = loaded();
  const Tensor ids = Tensor::host({1, 5}, DType::kI64);
  for (int i = 0; i < 5; ++i) ids.data<std::int64_t>()[i] = 10 + i;
  const autograd::NoGrad no_grad;
  const nn::Value hidden = (*model->find("model.language_model"))(ids);
  EXPECT_EQ((*model)(ids).tensor().to_vector<float>(), (*model->find("lm_head"))(hidden).tensor().to_vector<float>());
}

TEST(InternVLCall, TakesImagesInHostMemory) {
  const test::TestRank rank;
  const auto model = loaded();
  const Batch b = batch();
  const Tensor on_host = Tensor::host(b.pixel_values.shape(), DType::kF32);
  on_host.copy_from(b.pixel_values);
  const autograd::NoGrad no_grad;
  EXPECT_EQ((*model)(b.input_ids, on_host).tensor().to_vector<float>(),
            (*model)(b.input_ids, b.pixel_values).tensor().to_vector<float>());
}

TEST(InternVLCall, RefusesImagesAndTokensThatDoNotFit) {
  const test::TestRank rank;
  const auto model = loaded();
  const Batch b = batch();
  const auto refused = [&](const Tensor& ids, const Tensor& pixels) {
    return test::message_of<ConfigError>([&] { (*model)(ids, pixels); });
  };
  EXPECT_EQ(refused(b.input_ids, b.pixel_values.rows(0, 1)),
            "image tokens and image features do not match: input_ids hold 8 tokens with id 250, the images give 4 "
            "features; write one image token for each feature of an image");
  EXPECT_EQ(refused(b.input_ids, Tensor::zeros({2, 3, 40, 32}, DType::kF32)),
            "pixel_values [2, 3, 40, 32], but the model takes [images, 3, height, width] with sides that are multiples "
            "of 16, as 2 x 2 patches of 8 pixels become a token; resize the images");
  EXPECT_EQ(
      refused(b.input_ids, Tensor::zeros({2, 1, 32, 32}, DType::kF32)),
      "pixel_values [2, 1, 32, 32], but the vision tower takes [images, 3, height, width] in whole patches of 8 x "
      "8; resize the images");
  EXPECT_EQ(test::message_of<ConfigError>([&] { (*model)(b.input_ids); }),
            "input_ids hold 8 tokens with id 250 (image_token_id), but no pixel_values were given; each image of 32 x "
            "32 pixels takes 4");
}

// The table is of 4 x 4 patches; 16 pixels a side are a token.
TEST(InternVLCall, TakesImagesOfOtherSizesThanTheTableOfPositions) {
  const test::TestRank rank;
  const auto model = loaded();
  for (const auto& [height, width] : {std::pair{48, 48}, std::pair{16, 64}, std::pair{16, 16}}) {
    const std::int64_t tokens = height * width / 256;
    const Tensor ids = Tensor::host({1, tokens + 2}, DType::kI32);
    for (std::int64_t i = 0; i < ids.numel(); ++i) {
      ids.data<std::int32_t>()[i] = i >= 1 && i <= tokens ? 250 : static_cast<std::int32_t>(3 + i);
    }
    const Tensor logits = (*model)(ids, Tensor::zeros({1, 3, height, width}, DType::kF32));
    EXPECT_EQ(logits.shape(), (Shape{1, tokens + 2, 256}));
    autograd::backward(ops::mean(logits));
    for (const auto& [path, parameter] : model->named_parameters()) {
      if (path.ends_with("position_embeddings")) {
        EXPECT_EQ(parameter.shape(), (Shape{1, 17, 48}));
        EXPECT_THAT(parameter.grad().to_vector<float>(), ::testing::Contains(::testing::Ne(0.0F)));
      }
      parameter.set_grad({});
    }
  }
}

TEST(InternVLFrozen, ATowerRecordsNothingAndKeepsNothing) {
  const test::TestRank rank;
  const auto model = loaded();
  const Batch b = batch();
  nn::Module& tower = *model->find("model.vision_tower");
  const auto kept_by_tower = [&] {
    const std::int64_t before = rank.device.memory().stats().total_bytes;
    const Tensor features = tower(b.pixel_values);
    return std::pair(features.requires_grad(),
                     rank.device.memory().stats().total_bytes - before - ((features.nbytes() + 511) / 512 * 512));
  };
  const auto [recorded, kept] = kept_by_tower();
  EXPECT_TRUE(recorded);
  EXPECT_GT(kept, 0);
  model->freeze_tower("vision_tower");
  const auto [recorded_frozen, kept_frozen] = kept_by_tower();
  EXPECT_FALSE(recorded_frozen);
  EXPECT_EQ(kept_frozen, 0);
}

TEST(InternVLFrozen, ATowersParametersGetNoGradientTheOthersDo) {
  const test::TestRank rank;
  const auto model = loaded();
  model->freeze_tower("vision_tower");
  const Batch b = batch();
  autograd::backward(ops::mean((*model)(b.input_ids, b.pixel_values)));
  for (const auto& [path, parameter] : model->named_parameters()) {
    EXPECT_EQ(parameter.grad().defined(), path.find("vision_tower") == std::string::npos) << path;
  }
}

TEST(InternVLFrozen, ADecoderPassesGradientsOnToTheTower) {
  const test::TestRank rank;
  const auto model = loaded();
  model->freeze_tower("language_model");
  const Batch b = batch();
  autograd::backward(ops::mean((*model)(b.input_ids, b.pixel_values)));
  for (const auto& [path, parameter] : model->named_parameters()) {
    const bool decoder = path.find("language_model") != std::string::npos || path == "lm_head.weight";
    EXPECT_EQ(parameter.grad().defined(), !decoder) << path;
  }
}

// --- Gradients

struct Variant {
  const char* name;
  bool qk_norm_and_rms;
  nn::KernelOptions kernels;
};

// The model in fp64, weights drawn anew.
std::shared_ptr<InternVL> in_doubles(const InternVLConfig& c) {
  const auto model = build_internvl(c);
  for (auto& [path, slot] : model->named_slots()) {
    std::vector<double> values;
    const std::uint64_t key = stream_key(3, path);
    for (std::int64_t i = 0; i < slot->shard.global_shape.numel(); ++i) {
      values.push_back((path.find("norm") != std::string::npos ? 1.0 : 0.0) +
                       0.2 * normal_at(key, static_cast<std::uint64_t>(i)));
    }
    slot->value = Tensor::from(values, slot->shard.global_shape, DType::kF64).set_requires_grad(true);
  }
  return model;
}

class WholeModel : public ::testing::TestWithParam<Variant> {};
INSTANTIATE_TEST_SUITE_P(InternVL, WholeModel,
                         ::testing::Values(Variant{"fast", false, nn::KernelOptions::fast()},
                                           Variant{"pytorch", false, nn::KernelOptions::pytorch()},
                                           Variant{"qk_norm_fast", true, nn::KernelOptions::fast()},
                                           Variant{"qk_norm_pytorch", true, nn::KernelOptions::pytorch()}),
                         [](const auto& info) { return info.param.name; });

// Central differences in fp64 (rotary tables are fp32 constants), three elements of every parameter.
TEST_P(WholeModel, HasTheDerivativesOfItsLossInEveryParameter) {
  test::TestRank rank;
  rank.context.slot<nn::KernelOptions>() = GetParam().kernels;
  InternVLConfig c = config();
  c.text.num_hidden_layers = 1;
  c.vision.use_qk_norm = c.vision.rms_norm = GetParam().qk_norm_and_rms;
  c.vision.use_mean_pooling = !GetParam().qk_norm_and_rms;
  if (GetParam().qk_norm_and_rms) c.vision.image_size = 24;  // 3 x 3 positions for 4 x 4 patches
  const auto model = in_doubles(c);
  const Batch b = batch(1, 6, DType::kF64);
  const Tensor targets = Tensor::host({1, 6}, DType::kI32);
  for (int i = 0; i < 6; ++i) targets.data<std::int32_t>()[i] = 20 + i;
  const auto loss = [&] { return ops::cross_entropy((*model)(b.input_ids, b.pixel_values), targets); };
  autograd::backward(loss());
  constexpr double kStep = 1e-5;
  for (const auto& [path, parameter] : model->named_parameters()) {
    ASSERT_TRUE(parameter.grad().defined()) << path;
    const std::vector<double> grad = parameter.grad().to_vector<double>();
    for (const std::int64_t e : {std::int64_t{0}, parameter.numel() / 2, parameter.numel() - 1}) {
      const autograd::NoGrad no_grad;
      double& value = parameter.data<double>()[e];
      const double kept = value;
      value = kept + kStep;
      const double above = loss().item();
      value = kept - kStep;
      const double below = loss().item();
      value = kept;
      const double expected = (above - below) / (2 * kStep);
      EXPECT_NEAR(grad[static_cast<std::size_t>(e)], expected, 2e-8 * std::max(1.0, std::abs(expected)))
          << path << ", element " << e;
    }
  }
}

class InternVLDryRun : public ::testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(InternVL, InternVLDryRun, ::testing::Values(32, 24), ::testing::PrintToStringParamName());

// Of images of 32 pixels a side.
TEST_P(InternVLDryRun, HasTheAccountsOfARealRunWithATableOfThisSize) {
  std::vector<device::MemStats> found;
  InternVLConfig c = config();
  c.vision.image_size = GetParam();
  for (const bool dry : {false, true}) {
    RankContext context(0, 1);
    const RankScope scope(context);
    device::DeviceOptions options;
    options.dry_run = dry;
    device::Device& device = device::Device::install(context, options);
    const auto model = build_internvl(c);
    nn::materialize(*model);
    if (!dry) nn::init_weights(*model, 1);
    const Batch b = batch();
    autograd::backward(ops::mean((*model)(b.input_ids, b.pixel_values)));
    found.push_back(device.memory().stats());
  }
  EXPECT_EQ(found[0].peak_bytes, found[1].peak_bytes);
  EXPECT_EQ(found[0].total_bytes, found[1].total_bytes);
}

}  // namespace
}  // namespace loom::models
