// Promise: weights go from and to Hugging Face folders unchanged, each rank reads its own rows, and a folder that does
//          not fit the model is refused before anything is allocated.
#include "models/hf/hf_folder.h"

#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/nn/init.h"
#include "models/decoder/decoder.h"
#include "tests/models/test_rank.h"
#include "tests/support/boxes.h"
#include "tests/support/files.h"

namespace loom::models {
namespace {

std::filesystem::path logits_case(const std::string& name) {
  return std::filesystem::path(LOOM_SOURCE_DIR) / "tests/reference/logits" / name;
}

std::shared_ptr<nn::Module> build(const std::string& name) {
  return build_decoder(load_decoder_config(logits_case(name)));
}

// The reference file's tensors, to be changed and written elsewhere.
class Edited {
 public:
  explicit Edited(const std::string& name) : file_(logits_case(name) / "model.safetensors") {
    for (const auto& stored : file_.tensors())
      tensors_.push_back({stored.name, stored.dtype, stored.shape, stored.bytes});
  }
  io::TensorToWrite& at(std::string_view name) {
    return *std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& tensor) { return tensor.name == name; });
  }
  void remove(std::string_view name) {
    std::erase_if(tensors_, [&](const auto& tensor) { return tensor.name == name; });
  }
  void add(const io::TensorToWrite& tensor) { tensors_.push_back(tensor); }
  std::vector<io::TensorToWrite>& tensors() { return tensors_; }
  io::HfWeights write(const std::filesystem::path& folder) {
    io::write_safetensors(folder / "model.safetensors", tensors_);
    return io::HfWeights(folder);
  }

 private:
  io::SafetensorsFile file_;
  std::vector<io::TensorToWrite> tensors_;
};

std::string refusal(const std::string& name, Edited& edited) {
  const auto folder = test::fresh_folder();
  const io::HfWeights weights = edited.write(folder);
  const auto model = build(name);
  const std::string message = test::message_of<ConfigError>([&] { check_weights(*model, weights); });
  const std::string prefix = folder.string() + ": ";
  EXPECT_EQ(message.substr(0, prefix.size()), prefix);
  return message.substr(prefix.size());
}

class HfRoundTrip : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(HfFolder, HfRoundTrip, ::testing::Values("qwen2", "llama", "gpt2"));

TEST_P(HfRoundTrip, LoadingAndSavingKeepsEveryBitAndTheConfig) {
  const test::TestRank rank;
  const auto source = logits_case(GetParam());
  const DecoderConfig config = load_decoder_config(source);
  const auto model = build_decoder(config);
  nn::materialize(*model);
  load_weights(*model, io::HfWeights(source));
  const auto folder = test::fresh_folder() / "saved";
  write_hf_folder(folder, config, model->named_parameters());

  EXPECT_TRUE(load_decoder_config(folder) == config);
  const io::SafetensorsFile before(source / "model.safetensors");
  const io::SafetensorsFile after(folder / "model.safetensors");
  ASSERT_EQ(after.tensors().size(), before.tensors().size());
  for (const auto& stored : before.tensors()) {
    const auto& saved = after.at(stored.name);
    ASSERT_EQ(saved.shape, stored.shape);
    EXPECT_EQ(std::memcmp(saved.bytes.data(), stored.bytes.data(), stored.bytes.size()), 0) << stored.name;
  }
}

TEST(HfFolder, ARanksRowsAreThoseOfTheWhole) {
  const test::TestRank rank;
  const io::HfWeights weights(logits_case("qwen2"));
  const auto whole = build("qwen2");
  nn::materialize(*whole);
  load_weights(*whole, weights);
  const auto parts = build("qwen2");
  auto slots = parts->named_slots();
  for (auto& [path, slot] : slots) {  // rows [n/3, 2n/3): shape-dependent, not aligned to anything
    slot->shard.offset[0] = slot->shard.global_shape[0] / 3;
    Shape rows = slot->shard.global_shape;
    rows[0] = slot->shard.global_shape[0] / 3;
    slot->value = Tensor::empty(rows, DType::kF32);
  }
  load_weights(*parts, weights);
  const auto whole_slots = whole->named_slots();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const nn::ParamSlot& part = *slots[i].second;
    const Tensor expected = whole_slots[i].second->value.rows(part.shard.offset[0], part.value.shape()[0]);
    EXPECT_EQ(part.value.to_vector<float>(), expected.to_vector<float>()) << slots[i].first;
  }
}

TEST(HfFolder, ARanksBoxIsThatOfTheWhole) {
  const test::TestRank rank;
  const io::HfWeights weights(logits_case("qwen2"));
  const auto whole = build("qwen2");
  nn::materialize(*whole);
  load_weights(*whole, weights);
  const auto parts = build("qwen2");
  auto slots = parts->named_slots();
  for (auto& [path, slot] : slots) {  // the middle third of the last dim, rows from the second on
    const Shape& shape = slot->shard.global_shape;
    Offset offset(static_cast<std::size_t>(shape.ndim()), 1);
    Shape box = shape;
    for (int d = 0; d < shape.ndim(); ++d) box[d] -= 1;
    offset.back() = shape[-1] / 3;
    box[-1] = shape[-1] / 3;
    test::give_box(*slot, offset, box);
  }
  load_weights(*parts, weights);
  const auto whole_slots = whole->named_slots();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const nn::ParamSlot& part = *slots[i].second;
    EXPECT_EQ(part.value.to_vector<float>(),
              test::box_of(whole_slots[i].second->value.to_vector<float>(), part.shard.global_shape, part.shard.offset,
                           part.value.shape()))
        << slots[i].first;
  }
}

TEST(HfFolder, RefusesABoxOutsideOfTheTensor) {
  const test::TestRank rank;
  const auto model = build("qwen2");
  nn::materialize(*model);
  nn::ParamSlot& norm = *model->find("model.norm")->own_parameters()[0];
  test::give_box(norm, {1}, norm.shard.global_shape);
  EXPECT_THROW(load_weights(*model, io::HfWeights(logits_case("qwen2"))), InvariantError);
}

TEST(HfFolder, ARankWithoutRowsReadsNothing) {
  const test::TestRank rank;
  const auto model = build("qwen2");
  for (auto& [path, slot] : model->named_slots()) {
    Shape rows = slot->shard.global_shape;
    slot->shard.offset[0] = rows[0];
    rows[0] = 0;
    slot->value = Tensor::empty(rows, DType::kF32);
  }
  EXPECT_NO_THROW(load_weights(*model, io::HfWeights(logits_case("qwen2"))));
}

TEST(HfFolder, ValuesAreConvertedToTheParametersType) {
  const test::TestRank rank;
  const io::HfWeights weights(logits_case("llama"));
  const auto model = build("llama");
  for (auto& [path, slot] : model->named_slots()) slot->value = Tensor::empty(slot->shard.global_shape, DType::kBF16);
  load_weights(*model, weights);
  const auto& stored = weights.at("model.norm.weight");
  const Tensor& loaded = model->find("model.norm")->own_parameters()[0]->value;
  const std::vector<float> values = loaded.to_vector<float>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    float original = 0;
    std::memcpy(&original, stored.bytes.data() + 4 * i, 4);
    EXPECT_EQ(values[i], static_cast<float>(bf16(original)));
  }
}

TEST(HfFolder, TiedSlotsOfGpt2StayTiedAfterLoading) {
  const test::TestRank rank;
  const auto model = build("gpt2");
  nn::materialize(*model);
  load_weights(*model, io::HfWeights(logits_case("gpt2")));
  const Tensor& embedding = model->find("transformer.wte")->own_parameters()[0]->value;
  const Tensor& head = model->find("lm_head")->own_parameters()[0]->value;
  EXPECT_TRUE(head.is_same(embedding));
}

TEST(HfFolder, ATiedHeadMayBeThereTooAndIsWrittenOnce) {
  const test::TestRank rank;
  Edited edited("gpt2");
  io::TensorToWrite head = edited.at("transformer.wte.weight");
  head.name = "lm_head.weight";
  edited.add(head);
  const auto folder = test::fresh_folder();
  const io::HfWeights weights = edited.write(folder);
  const auto model = build("gpt2");
  nn::materialize(*model);
  load_weights(*model, weights);
  auto tensors = model->named_parameters();
  tensors.emplace_back("lm_head.weight", model->find("lm_head")->own_parameters()[0]->value);
  write_hf_folder(folder / "saved", load_decoder_config(logits_case("gpt2")), tensors);
  EXPECT_EQ(io::HfWeights(folder / "saved").find("lm_head.weight"), nullptr);
}

// The layout of the published "gpt2": no "transformer." before the names, and each layer's causal mask.
TEST(HfFolder, ABaseModelsFolderIsReadWithoutItsFirstNameAndItsMasks) {
  const test::TestRank rank;
  Edited edited("gpt2");
  for (auto& tensor : edited.tensors()) tensor.name = tensor.name.substr(std::string("transformer.").size());
  const std::vector<std::byte> mask(4);
  edited.add({"h.0.attn.bias", DType::kF32, {1, 1, 1, 1}, std::span<const std::byte>(mask)});
  const io::HfWeights weights = edited.write(test::fresh_folder());
  const auto model = build("gpt2");
  nn::materialize(*model);
  load_weights(*model, weights);
  const auto reference = build("gpt2");
  nn::materialize(*reference);
  load_weights(*reference, io::HfWeights(logits_case("gpt2")));
  const auto expected = reference->named_parameters();
  const auto actual = model->named_parameters();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(actual[i].second.to_vector<float>(), expected[i].second.to_vector<float>()) << expected[i].first;
  }
}

TEST(HfFolder, AShapeThatIsNotTheConfigsIsRefusedWithBoth) {
  Edited edited("qwen2");
  io::TensorToWrite& tensor = edited.at("model.embed_tokens.weight");
  tensor.shape = {128, 64};
  tensor.content = std::get<std::span<const std::byte>>(tensor.content).subspan(0, 128 * 64 * 4);
  EXPECT_EQ(
      refusal("qwen2", edited),
      "tensor 'model.embed_tokens.weight': config.json says [256, 64], the safetensors file has [128, 64]; they are "
      "of different models");
}

TEST(HfFolder, AMissingTensorIsRefusedWithTheNearestName) {
  Edited edited("qwen2");
  edited.at("model.norm.weight").name = "model.norms.weight";
  EXPECT_EQ(
      refusal("qwen2", edited),
      "tensor 'model.norm.weight' [64] is missing from the safetensors file, which has 51 tensors; the nearest is "
      "'model.norms.weight'");
}

TEST(HfFolder, ATensorTheModelHasNotIsRefused) {
  Edited edited("llama");
  io::TensorToWrite extra = edited.at("model.norm.weight");
  extra.name = "model.layers.0.self_attn.q_norm.weight";
  edited.add(extra);
  EXPECT_EQ(
      refusal("llama", edited),
      "the model of config.json has no 'model.layers.0.self_attn.q_norm.weight' (1 such in the safetensors file); "
      "they are of different models");
}

TEST(HfFolder, ATensorOfIntegersIsRefused) {
  Edited edited("llama");
  edited.at("model.norm.weight").dtype = DType::kI32;
  EXPECT_EQ(refusal("llama", edited),
            "tensor 'model.norm.weight' is int32; parameters are read from fp32, bf16, fp16 or fp64");
}

}  // namespace
}  // namespace loom::models
