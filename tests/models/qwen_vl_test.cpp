// Promise: Qwen-VL's tree has transformers' paths, shapes and class names; checkpoints of either spelling load, and the
//          published one is written; pictures reach the decoder and gradients the tower; a frozen tower records
//          nothing; windows, squares of patches and a cache do what they should; calls that do not agree are refused.
#include "models/qwen_vl/qwen_vl.h"

#include <algorithm>
#include <cmath>
#include <gmock/gmock.h>
#include <map>

#include "engine/core/error.h"
#include "engine/core/rng.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/nn/init.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "models/decoder/kv_cache.h"
#include "models/hf/hf_folder.h"
#include "models/qwen_vl/mrope_positions.h"
#include "models/qwen_vl/qwen_vl_vision.h"
#include "tests/models/test_rank.h"
#include "tests/support/files.h"

namespace loom::models {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

using Tokens = std::vector<std::int32_t>;
using Floats = std::vector<float>;
using Rows = std::vector<std::int64_t>;

constexpr std::int64_t kPatch = 1176;  // numbers of a patch
constexpr std::int64_t kVocab = 256;
constexpr std::int32_t kImage = 252, kVideo = 253;  // ids

std::filesystem::path folder_of(const char* version) {
  return std::filesystem::path(LOOM_SOURCE_DIR) / "tests/reference/vision" / version;
}

std::shared_ptr<QwenVl> loaded_from(const std::filesystem::path& folder) {
  const auto model = build_qwen_vl(load_qwen_vl_config(folder));
  nn::materialize(*model);
  load_weights(*model, io::HfWeights(folder));
  return model;
}

using Shapes = std::map<std::string, std::vector<std::int64_t>>;
Shapes shapes_of(nn::Module& model) {
  Shapes shapes;
  for (const auto& [path, slot] : model.named_slots()) shapes[path] = slot->shard.global_shape.sizes();
  return shapes;
}

// The two spellings of names.
std::string in_memory(const std::string& name) {
  if (name.starts_with("visual.")) return "model." + name;
  const bool is_text =
      name.starts_with("model.") && !name.starts_with("model.visual.") && !name.starts_with("model.language_model.");
  return is_text ? "model.language_model." + name.substr(6) : name;
}
std::string published(const std::string& path) {
  if (path.starts_with("model.visual.")) return path.substr(6);
  return path.starts_with("model.language_model.") ? "model." + path.substr(21) : path;
}

Tensor patches(std::int64_t count, std::int64_t values = kPatch, std::uint64_t key = 5) {
  std::vector<float> numbers;
  for (std::int64_t i = 0; i < count * values; ++i) {
    numbers.push_back(static_cast<float>(normal_at(key, static_cast<std::uint64_t>(i))));
  }
  return Tensor::from(numbers, {count, values});
}

Tensor ids_of(const std::vector<Tokens>& rows) {
  const Tensor ids = Tensor::host({std::ssize(rows), std::ssize(rows.front())}, DType::kI32);
  auto* to = ids.data<std::int32_t>();
  for (const Tokens& row : rows) to = std::ranges::copy(row, to).out;
  return ids;
}

nn::ValueDict pictures(const std::vector<VisionGrid>& grids, std::uint64_t key = 5) {
  std::int64_t count = 0;
  for (const VisionGrid& grid : grids) count += grid.t * grid.h * grid.w;
  return {{"pixel_values", patches(count, kPatch, key)}, {"image_grid_thw", to_value(grids)}};
}

const std::vector<VisionGrid> kGrids{{1, 4, 4}, {1, 2, 4}};
// Two rows with a picture of 4 and one of 2 tokens, whose ids are `image`.
Tensor two_rows(std::int32_t image = kImage) {
  return ids_of({{5, 6, 250, image, image, image, image, 251, 7, 8}, {9, 250, image, image, 251, 11, 12, 13, 14, 15}});
}

Floats floats(const nn::Value& value) { return value.tensor().to_vector<float>(); }

double worst(const Floats& a, const Floats& b) {
  if (a.size() != b.size()) return INFINITY;
  double difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference = std::max(difference, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return difference;
}

// Which rows of `width` numbers differ.
Rows changed_rows(const Floats& before, const Floats& after, std::int64_t width) {
  EXPECT_EQ(before.size(), after.size());
  Rows rows;
  for (std::int64_t row = 0; row < std::ssize(before) / width; ++row) {
    const auto at = before.begin() + row * width;
    if (!std::equal(at, at + width, after.begin() + row * width)) rows.push_back(row);
  }
  return rows;
}

std::vector<Tensor> tensors_of(const nn::Value& value) {
  std::vector<Tensor> tensors;
  value.collect_tensors(tensors);
  return tensors;
}

// With the reference model of every version.
class QwenVlModel : public ::testing::TestWithParam<const char*> {
 protected:
  static QwenVlConfig config() { return load_qwen_vl_config(folder_of(GetParam())); }
  static std::shared_ptr<QwenVl> loaded() { return loaded_from(folder_of(GetParam())); }

  test::TestRank rank_;
};
INSTANTIATE_TEST_SUITE_P(QwenVl, QwenVlModel, ::testing::Values("qwen2_vl", "qwen2_5_vl", "qwen3_vl"),
                         [](const auto& info) { return std::string(info.param); });

// --- The tree

TEST_P(QwenVlModel, HasTheParametersOfTheReferenceFileAndNoBytes) {
  const auto model = build_qwen_vl(config());
  Shapes stored;
  const io::SafetensorsFile file(folder_of(GetParam()) / "model.safetensors");
  for (const auto& tensor : file.tensors()) stored[in_memory(tensor.name)] = tensor.shape.sizes();
  EXPECT_EQ(shapes_of(*model), stored);
  for (const auto& [path, slot] : model->named_slots()) EXPECT_TRUE(slot->value.is_meta()) << path;
  QwenVlConfig tied = config();
  tied.text.tie_word_embeddings = true;
  EXPECT_EQ(build_qwen_vl(tied)->named_parameters().size(), stored.size() - 1);
}

using Classes = std::vector<std::pair<std::string, std::string>>;
void expect_classes(const char* version, const Classes& expected) {
  const auto model = build_qwen_vl(load_qwen_vl_config(folder_of(version)));
  for (const auto& [path, type] : expected) {
    ASSERT_NE(model->find(path), nullptr) << path;
    EXPECT_EQ(model->find(path)->type_name(), type) << path;
  }
}

TEST(QwenVlTree, HasTheClassesOfQwen2) {
  expect_classes("qwen2_vl", {{"", "Qwen2VLForConditionalGeneration"},
                              {"model", "Qwen2VLModel"},
                              {"model.visual", "Qwen2VisionTransformerPretrainedModel"},
                              {"model.visual.patch_embed", "PatchEmbed"},
                              {"model.visual.patch_embed.proj", "Conv3d"},
                              {"model.visual.blocks", "ModuleList"},
                              {"model.visual.blocks.1", "Qwen2VLVisionBlock"},
                              {"model.visual.blocks.1.norm1", "LayerNorm"},
                              {"model.visual.blocks.1.attn", "VisionAttention"},
                              {"model.visual.blocks.1.mlp", "VisionMlp"},
                              {"model.visual.merger", "PatchMerger"},
                              {"model.visual.merger.ln_q", "LayerNorm"},
                              {"model.language_model", "Qwen2VLTextModel"},
                              {"model.language_model.embed_tokens", "Embedding"},
                              {"model.language_model.layers.1", "Qwen2VLDecoderLayer"},
                              {"model.language_model.layers.1.self_attn", "Qwen2VLAttention"},
                              {"model.language_model.layers.1.mlp", "Qwen2MLP"},
                              {"model.language_model.rotary_emb", "Qwen2VLRotaryEmbedding"},
                              {"lm_head", "Linear"}});
}

TEST(QwenVlTree, HasTheClassesOfQwen25) {
  expect_classes("qwen2_5_vl", {{"", "Qwen2_5_VLForConditionalGeneration"},
                                {"model", "Qwen2_5_VLModel"},
                                {"model.visual", "Qwen2_5_VisionTransformerPretrainedModel"},
                                {"model.visual.patch_embed", "Qwen2_5_VisionPatchEmbed"},
                                {"model.visual.blocks.1", "Qwen2_5_VLVisionBlock"},
                                {"model.visual.blocks.1.norm2", "RMSNorm"},
                                {"model.visual.blocks.1.attn", "Qwen2_5_VLVisionAttention"},
                                {"model.visual.blocks.1.mlp", "Qwen2_5_VLMLP"},
                                {"model.visual.merger", "Qwen2_5_VLPatchMerger"},
                                {"model.visual.merger.ln_q", "RMSNorm"},
                                {"model.language_model", "Qwen2_5_VLTextModel"},
                                {"model.language_model.layers.0", "Qwen2_5_VLDecoderLayer"},
                                {"model.language_model.layers.0.self_attn", "Qwen2_5_VLAttention"},
                                {"model.language_model.layers.0.mlp", "Qwen2MLP"},
                                {"model.language_model.rotary_emb", "Qwen2_5_VLRotaryEmbedding"}});
}

TEST(QwenVlTree, HasTheClassesOfQwen3) {
  expect_classes("qwen3_vl", {{"", "Qwen3VLForConditionalGeneration"},
                              {"model", "Qwen3VLModel"},
                              {"model.visual", "Qwen3VLVisionModel"},
                              {"model.visual.patch_embed", "Qwen3VLVisionPatchEmbed"},
                              {"model.visual.pos_embed", "Embedding"},
                              {"model.visual.blocks.2", "Qwen3VLVisionBlock"},
                              {"model.visual.blocks.2.attn", "Qwen3VLVisionAttention"},
                              {"model.visual.blocks.2.mlp", "Qwen3VLVisionMLP"},
                              {"model.visual.merger", "Qwen3VLVisionPatchMerger"},
                              {"model.visual.deepstack_merger_list.1", "Qwen3VLVisionPatchMerger"},
                              {"model.language_model", "Qwen3VLTextModel"},
                              {"model.language_model.layers.2", "Qwen3VLTextDecoderLayer"},
                              {"model.language_model.layers.2.self_attn", "Qwen3VLTextAttention"},
                              {"model.language_model.layers.2.mlp", "Qwen3VLTextMLP"},
                              {"model.language_model.rotary_emb", "Qwen3VLTextRotaryEmbedding"}});
}

// --- Checkpoints

TEST_P(QwenVlModel, LoadsBothSpellingsOfNamesAsTheSameModel) {
  const io::SafetensorsFile file(folder_of(GetParam()) / "model.safetensors");
  const auto expected = loaded();
  const auto expected_slots = expected->named_slots();
  for (const bool as_published : {true, false}) {
    std::vector<io::TensorToWrite> renamed;
    for (const auto& tensor : file.tensors()) {
      const std::string path = in_memory(tensor.name);
      renamed.push_back({as_published ? published(path) : path, tensor.dtype, tensor.shape, tensor.bytes});
    }
    const auto folder = test::fresh_folder();
    io::write_safetensors(folder / "model.safetensors", renamed);
    const auto model = build_qwen_vl(config());
    nn::materialize(*model);
    load_weights(*model, io::HfWeights(folder));
    const auto slots = model->named_slots();
    ASSERT_EQ(slots.size(), expected_slots.size());
    for (std::size_t i = 0; i < slots.size(); ++i) {
      ASSERT_EQ(slots[i].second->value.to_vector<float>(), expected_slots[i].second->value.to_vector<float>())
          << slots[i].first << (as_published ? ", published" : ", in memory");
    }
  }
}

// transformers writes visual. and model. for Qwen2-VL and Qwen2.5-VL; the reference files are such.
TEST_P(QwenVlModel, IsWrittenWithPublishedNamesAndReadBack) {
  const auto model = loaded();
  const auto folder = test::fresh_folder() / "saved";
  write_hf_folder(folder, model->config_json(), false, model->named_parameters(), ExpertSpelling::kPerExpert);
  EXPECT_TRUE(load_qwen_vl_config(folder) == config());
  const io::SafetensorsFile before(folder_of(GetParam()) / "model.safetensors"), after(folder / "model.safetensors");
  ASSERT_EQ(after.tensors().size(), before.tensors().size());
  for (const auto& stored : before.tensors()) {
    const auto& saved = after.at(stored.name);
    ASSERT_EQ(saved.shape, stored.shape);
    EXPECT_TRUE(std::ranges::equal(saved.bytes, stored.bytes)) << stored.name;
  }
}

// --- Calls

TEST_P(QwenVlModel, GivesLogitsThatDependOnThePictures) {
  const auto model = loaded();
  const autograd::NoGrad no_grad;
  const nn::Value logits = model->call({{two_rows()}, pictures(kGrids)});
  EXPECT_EQ(logits.tensor().shape(), (Shape{2, 10, kVocab}));
  const Floats others = floats(model->call({{two_rows()}, pictures(kGrids, 6)}));
  const Rows changed = changed_rows(floats(logits), others, kVocab);
  EXPECT_THAT(changed, ElementsAre(3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 15, 16, 17, 18, 19));  // from a picture on
}

// Positions in three axes, all equal: the bits of the decoder with plain positions.
TEST_P(QwenVlModel, OnTextAloneIsTheDecoder) {
  const auto model = loaded();
  const Tensor ids = ids_of({{10, 11, 12, 13, 14}, {20, 21, 22, 23, 24}});
  const autograd::NoGrad no_grad;
  const nn::Value hidden = (*model->find("model.language_model"))(ids);
  EXPECT_EQ(floats((*model)(ids)), floats((*model->find("lm_head"))(hidden)));
}

TEST_P(QwenVlModel, TakesPixelsByPlaceAndGridsAsTensors) {
  const auto model = loaded();
  const autograd::NoGrad no_grad;
  const nn::ValueDict named = pictures(kGrids);
  const Tensor grids = Tensor::from<std::int64_t>({1, 4, 4, 1, 2, 4}, {2, 3});
  EXPECT_EQ(floats(model->call({{two_rows(), named[0].second}, {{"image_grid_thw", grids}}})),
            floats(model->call({{two_rows()}, named})));
}

// A video of one frame is a picture.
TEST_P(QwenVlModel, TakesVideosAsPictures) {
  const auto model = loaded();
  const autograd::NoGrad no_grad;
  const nn::ValueDict named = pictures(kGrids);
  const nn::ValueDict videos{{"pixel_values_videos", named[0].second}, {"video_grid_thw", named[1].second}};
  const Floats of_pictures = floats(model->call({{two_rows()}, named}));
  EXPECT_EQ(floats(model->call({{two_rows(kVideo)}, videos})), of_pictures);
  // The first as a picture, the second as a video.
  Tensor mixed = two_rows();
  std::replace(mixed.data<std::int32_t>() + 10, mixed.data<std::int32_t>() + 20, kImage, kVideo);
  const Tensor all = named[0].second;
  const nn::ValueDict both{{"pixel_values", all.rows(0, 16)},
                           {"image_grid_thw", to_value({kGrids[0]})},
                           {"pixel_values_videos", all.rows(16, 8)},
                           {"video_grid_thw", to_value({kGrids[1]})}};
  EXPECT_LE(worst(floats(model->call({{mixed}, both})), of_pictures), 1e-5);
}

TEST_P(QwenVlModel, TakesPositionsInsteadOfItsOwn) {
  const auto model = loaded();
  const autograd::NoGrad no_grad;
  const nn::ValueDict named = pictures(kGrids);
  const Floats own = floats(model->call({{two_rows()}, named}));
  nn::ValueDict given = named;
  given.emplace_back("position_ids", mrope_positions(two_rows(), {}, {kGrids, {}}, config()).ids);
  EXPECT_EQ(floats(model->call({{two_rows()}, given})), own);
  given.back().second = ids_of({{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}});
  EXPECT_GT(worst(floats(model->call({{two_rows()}, given})), own), 1e-3);
}

TEST_P(QwenVlModel, RefusesPicturesWithoutGridsAndGridsWithoutPictures) {
  const auto model = loaded();
  const std::string type = std::string(model->type_name());
  const auto refused = [&](const Tensor& ids, const nn::ValueDict& named) {
    return test::message_of<ConfigError>([&] { model->call({{ids}, named}); });
  };
  const Tensor text = ids_of({{5, 6, 7}});
  const nn::ValueDict named = pictures(kGrids);
  EXPECT_EQ(refused(text, {named[0]}), type + " was called with pixel_values and without image_grid_thw; give both");
  EXPECT_EQ(refused(two_rows(), {named[1]}),
            type + " was called with image_grid_thw and without pixel_values; give both");
  EXPECT_EQ(refused(text, {{"pixel_values_videos", named[0].second}}),
            type + " was called with pixel_values_videos and without video_grid_thw; give both");
}

TEST_P(QwenVlModel, RefusesTokensAndGridsThatDoNotFit) {
  const auto model = loaded();
  const auto refused = [&](const Tensor& ids, const nn::ValueDict& named) {
    return test::message_of<ConfigError>([&] { model->call({{ids}, named}); });
  };
  EXPECT_EQ(refused(two_rows(), {}),
            "input_ids has a token with id 252 at [0, 3], behind the last picture: there are 0 grids; write one token "
            "for each feature of a picture");
  EXPECT_EQ(refused(two_rows(), pictures({{1, 4, 6}, {1, 2, 4}})),
            "picture 0 has 6 features, but input_ids has 4 tokens with id 252 from [0, 3] on; write one token for each "
            "feature");
  nn::ValueDict named = pictures(kGrids);
  named[0].second = patches(16);
  EXPECT_EQ(refused(two_rows(), named),
            "pixel_values [16, 1176], but the grids of 2 pictures make 24 patches of 1176 values; give [24, 1176] "
            "(patch_size 14, temporal_patch_size 2)");
  EXPECT_EQ(refused(ids_of({{5, kImage, kImage, 6}}), pictures({{1, 3, 4}})),
            "the grid of picture 0 is 1 x 3 x 4, in patches; height and width are multiples of 2");
  EXPECT_EQ(refused(two_rows(), {{"actual_seq_len", nn::ValueList{10, 20}}}),
            std::string(model->type_name()) +
                " was called with actual_seq_len, which it does not take; of named arguments it takes pixel_values, "
                "image_grid_thw, pixel_values_videos, video_grid_thw, second_per_grid_ts, attention_mask, "
                "position_ids; remove --reset-attention-mask or --neat-pack");
}

// --- Freezing

bool is_of_tower(const std::string& path) {
  return path.starts_with("model.visual.") && path.find("merger") == std::string::npos;
}

TEST_P(QwenVlModel, IsFrozenAsTheConfigSaysAndWholeByItsTowers) {
  QwenVlConfig frozen = config();
  frozen.vision.freeze = true;
  const auto model = build_qwen_vl(frozen);
  EXPECT_TRUE(model->is_frozen("vision_tower"));
  EXPECT_FALSE(model->is_frozen("multi_modal_projector"));
  EXPECT_FALSE(model->is_frozen("language_model"));
  frozen.vision.freeze = false;
  frozen.freeze_text = true;
  const auto text = build_qwen_vl(frozen);
  EXPECT_FALSE(text->is_frozen("vision_tower"));
  EXPECT_TRUE(text->is_frozen("language_model"));
  for (const char* tower : {"multi_modal_projector", "language_model"}) model->freeze_tower(tower);
  for (const auto& [path, parameter] : model->named_parameters()) EXPECT_FALSE(parameter.requires_grad()) << path;
}

TEST_P(QwenVlModel, WithAFrozenTowerRecordsNothingOfIt) {
  const auto model = loaded();
  nn::Module& visual = *model->find("model.visual");
  const Tensor pixels = patches(24);
  const auto kept_by_tower = [&] {
    const std::int64_t before = rank_.device.memory().stats().total_bytes;
    const nn::Value features = visual(pixels, to_value(kGrids));
    std::int64_t kept = rank_.device.memory().stats().total_bytes - before;
    bool recorded = false;
    for (const Tensor& tensor : tensors_of(features)) {
      kept -= (tensor.nbytes() + 511) / 512 * 512;
      recorded = recorded || tensor.requires_grad();
    }
    return std::pair(recorded, kept);
  };
  const auto [recorded, kept] = kept_by_tower();
  EXPECT_TRUE(recorded);
  EXPECT_GT(kept, 0);
  model->freeze_tower("vision_tower");
  const auto [recorded_merger, kept_merger] = kept_by_tower();
  EXPECT_TRUE(recorded_merger);
  EXPECT_LT(kept_merger, kept);
  model->freeze_tower("multi_modal_projector");
  EXPECT_EQ(kept_by_tower(), std::pair(false, std::int64_t{0}));
}

TEST_P(QwenVlModel, GivesGradientsToWhatIsNotFrozen) {
  const auto has_gradients = [&](const char* frozen, const std::function<bool(const std::string&)>& expected) {
    const auto model = loaded();
    if (frozen != nullptr) model->freeze_tower(frozen);
    autograd::backward(ops::mean(model->call({{two_rows()}, pictures(kGrids)})));
    for (const auto& [path, parameter] : model->named_parameters()) {
      EXPECT_EQ(parameter.grad().defined(), expected(path)) << path;
      if (parameter.grad().defined() && path.ends_with(".weight")) {
        EXPECT_THAT(parameter.grad().to_vector<float>(), Not(Each(0.0F))) << path;
      }
    }
  };
  has_gradients(nullptr, [](const std::string&) { return true; });
  has_gradients("vision_tower", [](const std::string& path) { return !is_of_tower(path); });
  has_gradients("multi_modal_projector", [](const std::string& path) { return path.find("merger") == path.npos; });
  has_gradients("language_model", [](const std::string& path) { return path.starts_with("model.visual."); });
}

// --- A batch of text with a white picture under its padding

constexpr std::int32_t kIgnored = -100;

struct Gradients {
  double loss = 0;
  std::map<std::string, Floats> of_text, of_tower;
};
Gradients gradients(QwenVl& model, const std::vector<Tokens>& rows, const std::vector<Tokens>& targets,
                    const nn::ValueDict& named) {
  const Tensor loss = ops::cross_entropy(model.call({{ids_of(rows)}, named}), ids_of(targets));
  autograd::backward(loss);
  Gradients found{loss.item(), {}, {}};
  for (const auto& [path, parameter] : model.named_parameters()) {
    auto& of = path.starts_with("model.visual.") ? found.of_tower : found.of_text;
    of[path] = parameter.grad().defined() ? parameter.grad().to_vector<float>() : Floats{};
  }
  return found;
}

TEST_P(QwenVlModel, OnTextWithAWhitePictureUnderItsPaddingIsThatOnText) {
  std::vector<Tokens> rows{{10, 20, 30, 40, 50, 60, 70, 80}, {15, 25, 35, 45, 55, 65, 75, 85}};
  std::vector<Tokens> targets{{20, 30, 40, 50, 60, 70, 80, kIgnored}, {25, 35, 45, 55, 65, 75, 85, kIgnored}};
  const Gradients text = gradients(*loaded(), rows, targets, {});
  for (const auto& [path, values] : text.of_tower) EXPECT_THAT(values, IsEmpty()) << path;

  std::vector<Tokens> mask(2, Tokens(8, 1));
  for (std::size_t row = 0; row < 2; ++row) {
    rows[row].insert(rows[row].end(), 4, row == 0 ? kImage : 0);
    targets[row].insert(targets[row].end(), 4, kIgnored);
    mask[row].insert(mask[row].end(), 4, 0);
  }
  const nn::ValueDict white{{"pixel_values", Tensor::full({16, kPatch}, DType::kF32, 1.5)},
                            {"image_grid_thw", to_value({{1, 4, 4}})},
                            {"attention_mask", ids_of(mask)}};
  const Gradients with_white = gradients(*loaded(), rows, targets, white);
  EXPECT_NEAR(with_white.loss, text.loss, 1e-6);
  for (const auto& [path, values] : text.of_text) EXPECT_LE(worst(with_white.of_text.at(path), values), 1e-6) << path;
  for (const auto& [path, values] : with_white.of_tower) {
    EXPECT_THAT(values, AllOf(Not(IsEmpty()), Each(0.0F))) << path;
  }
}

// --- The tower

// Patches of 2 x 2 numbers, tokens of 2 x 2 patches; windows of `window` pixels.
QwenVisionConfig small_tower(std::int64_t depth, std::int64_t window, std::vector<std::int64_t> whole) {
  return {.version = QwenVlVersion::k2_5,
          .depth = depth,
          .hidden_size = 16,
          .num_heads = 2,
          .intermediate_size = 24,
          .out_hidden_size = 8,
          .in_channels = 1,
          .patch_size = 2,
          .temporal_patch_size = 1,
          .initializer_range = 0.2,
          .window_size = window,
          .fullatt_block_indexes = std::move(whole)};
}

std::shared_ptr<nn::Module> made(const QwenVisionConfig& config) {
  const auto tower = make_qwen_vision(config);
  nn::materialize(*tower);
  nn::init_weights(*tower, 7);
  return tower;
}

// 8 x 8 patches in 4 windows of 16; the last patch is in the last window.
TEST(QwenVlTower, AreLeftInTheBlocksThatSeeTheWholePictureAlone) {
  const test::TestRank rank;
  const autograd::NoGrad no_grad;
  const auto tower = made(small_tower(8, 8, {7}));
  std::map<std::string, Floats> of_block;
  for (const std::string path : {"blocks.6", "blocks.7"}) {
    tower->find(path)->register_post_hook([&of_block, path](nn::Module&, nn::Value result) {
      of_block[path] = floats(result);
      return result;
    });
  }
  const auto run = [&](const Tensor& pixels) {
    (*tower)(pixels, to_value({{1, 8, 8}}));
    return of_block;
  };
  const Tensor pixels = patches(64, 4);
  const auto before = run(pixels);
  pixels.rows(63, 1).fill(3);
  const auto after = run(pixels);
  EXPECT_THAT(changed_rows(before.at("blocks.6"), after.at("blocks.6"), 16), AllOf(Not(IsEmpty()), Each(Ge(48))));
  EXPECT_THAT(changed_rows(before.at("blocks.7"), after.at("blocks.7"), 16), SizeIs(64));
}

// One window that holds a frame leaves the patches where they are.
TEST(QwenVlTower, DoNotMatterWhereAllBlocksSeeTheWholePicture) {
  const test::TestRank rank;
  const autograd::NoGrad no_grad;
  const Tensor pixels = patches(128, 4);
  const auto run = [&](std::int64_t window, std::vector<std::int64_t> whole) {
    return floats((*made(small_tower(4, window, std::move(whole))))(pixels, to_value({{2, 8, 8}})));
  };
  const Floats in_order = run(16, {});
  ASSERT_EQ(in_order.size(), 32U * 8U);
  double largest = 1;
  for (const float value : in_order) largest = std::max(largest, std::abs(static_cast<double>(value)));
  EXPECT_LE(worst(run(8, {0, 1, 2, 3}), in_order), 1e-5 * largest);
  EXPECT_GT(worst(run(8, {}), in_order), 1e-3);
}

// Where blocks add nothing, a token is its square of patches, in every order of windows.
TEST_P(QwenVlModel, MakesATokenOfItsOwnPatches) {
  const autograd::NoGrad no_grad;
  const auto model = loaded();
  nn::Module& visual = *model->find("model.visual");
  for (const auto& [path, slot] : visual.named_slots()) {
    if (!path.starts_with("blocks.")) continue;
    for (const char* last : {".attn.proj.", ".mlp.fc2.", ".mlp.down_proj.", ".mlp.linear_fc2."}) {
      if (path.find(last) != std::string::npos) slot->value.fill(0);
    }
  }
  const Tensor pixels = patches(32);
  const auto run = [&] { return tensors_of(visual(pixels, to_value({{1, 4, 8}}))); };
  std::vector<Floats> before;
  for (const Tensor& features : run()) before.push_back(features.to_vector<float>());
  pixels.rows(13, 1).fill(3);  // of square 3
  const std::vector<Tensor> after = run();
  ASSERT_EQ(after.size(), config().version == QwenVlVersion::k3 ? 3U : 1U);  // with deepstack
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].shape(), (Shape{8, 64}));
    EXPECT_THAT(changed_rows(before[i], after[i].to_vector<float>(), 64), ElementsAre(3)) << i;
  }
}

// A frame of a video does not see the others.
TEST_P(QwenVlModel, KeepsFramesApart) {
  const autograd::NoGrad no_grad;
  const auto model = loaded();
  nn::Module& visual = *model->find("model.visual");
  const Tensor pixels = patches(32);
  const auto run = [&] { return tensors_of(visual(pixels, to_value({{2, 4, 4}}))).front().to_vector<float>(); };
  const Floats before = run();
  pixels.rows(16, 1).fill(3);
  EXPECT_THAT(changed_rows(before, run(), 64), ElementsAre(4, 5, 6, 7));
}

// --- A cache

// Row 0 begins with a picture of 4 tokens, row 1 is text and shorter.
TEST_P(QwenVlModel, WithACacheHasTheLogitsOfTheWholeRow) {
  const auto model = loaded();
  const autograd::NoGrad no_grad;
  const nn::ValueDict picture = pictures({{1, 4, 4}});
  std::vector<Tokens> rows{{5, 250, kImage, kImage, kImage, kImage, 251, 7, 8, 9}, {11, 12, 13, 14, 15, 16}};
  const auto alone = [&](std::size_t row) {
    const Floats all = floats(model->call({{ids_of({rows[row]})}, row == 0 ? picture : nn::ValueDict{}}));
    return Floats(all.end() - kVocab, all.end());
  };
  KvCache cache(kv_cache_shape(config().text), 2, 16);
  nn::ValueDict prompt = picture;
  prompt.emplace_back("past_key_values", cache.to_value());
  prompt.emplace_back("attention_mask", ids_of({Tokens(10, 1), {1, 1, 1, 1, 1, 1, 0, 0, 0, 0}}));
  prompt.emplace_back("logits_to_keep", 1);
  const auto expect_alone = [&](const nn::Value& logits) {
    const Floats found = floats(logits);
    ASSERT_EQ(std::ssize(found), 2 * kVocab);
    EXPECT_LE(worst(Floats(found.begin(), found.begin() + kVocab), alone(0)), 1e-5) << rows[0].size();
    EXPECT_LE(worst(Floats(found.begin() + kVocab, found.end()), alone(1)), 1e-5) << rows[1].size();
  };
  Tokens padded = rows[1];
  padded.resize(10, 0);
  expect_alone(model->call({{ids_of({rows[0], padded})}, prompt}));
  for (std::int32_t step = 0; step < 4; ++step) {
    rows[0].push_back(20 + step);
    rows[1].push_back(40 + step);
    expect_alone(model->call({{ids_of({{20 + step}, {40 + step}})}, {{"past_key_values", cache.to_value()}}}));
  }
  EXPECT_EQ(cache.length(0), 14);
  EXPECT_EQ(cache.length(1), 10);
  // Rows take their distance along.
  cache.select_rows(std::vector<std::int64_t>{1, 0});
  std::swap(rows[0], rows[1]);
  rows[0].push_back(60);
  rows[1].push_back(61);
  const Floats swapped = floats(model->call({{ids_of({{60}, {61}})}, {{"past_key_values", cache.to_value()}}}));
  std::swap(rows[0], rows[1]);
  EXPECT_LE(worst(Floats(swapped.begin() + kVocab, swapped.end()), alone(0)), 1e-5);
  EXPECT_LE(worst(Floats(swapped.begin(), swapped.begin() + kVocab), alone(1)), 1e-5);
}

TEST_P(QwenVlModel, RefusesPicturesThatComeLateToACache) {
  const auto model = loaded();
  const autograd::NoGrad no_grad;
  KvCache cache(kv_cache_shape(config().text), 1, 16);
  const auto called = [&](const Tokens& tokens, nn::ValueDict named) {
    named.emplace_back("past_key_values", cache.to_value());
    return model->call({{ids_of({tokens})}, std::move(named)});
  };
  const auto refused = [&](const Tokens& tokens, const nn::ValueDict& named) {
    return test::message_of<ConfigError>([&] { called(tokens, named); });
  };
  const std::string type = std::string(model->type_name());
  EXPECT_EQ(refused({8, kImage}, {}), "input_ids hold 1 tokens with id 252, but no pixel_values were given");
  called({5, 6, 7}, {});
  EXPECT_EQ(refused({kImage, kImage, 8}, pictures({{1, 2, 4}})),
            type +
                " was called with pictures for row 0, which has 3 tokens in past_key_values; give pictures with the "
                "first tokens of a row");
  EXPECT_EQ(refused({8}, {{"actual_seq_len", nn::ValueList{1}}}),
            type + " was called with actual_seq_len and past_key_values; it takes no actual_seq_len then");
  EXPECT_EQ(cache.length(0), 3);
  called({8, kImage}, {});  // a generated token is text, whatever its id
  EXPECT_EQ(cache.length(0), 5);
}

// --- Dry runs

TEST(QwenVlDryRun, HasTheAccountsOfARealRun) {
  for (const char* version : {"qwen2_vl", "qwen2_5_vl", "qwen3_vl"}) {
    std::vector<device::MemStats> found;
    for (const bool dry : {false, true}) {
      RankContext context(0, 1);
      const RankScope scope(context);
      device::DeviceOptions options;
      options.dry_run = dry;
      device::Device& device = device::Device::install(context, options);
      const auto model = build_qwen_vl(load_qwen_vl_config(folder_of(version)));
      nn::materialize(*model);
      if (!dry) nn::init_weights(*model, 1);
      autograd::backward(ops::mean(model->call({{two_rows()}, pictures(kGrids)})));
      found.push_back(device.memory().stats());
    }
    EXPECT_EQ(found[0].peak_bytes, found[1].peak_bytes) << version;
    EXPECT_EQ(found[0].total_bytes, found[1].total_bytes) << version;
  }
}

}  // namespace
}  // namespace loom::models
