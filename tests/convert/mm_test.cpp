// Promise: a Hugging Face folder of Qwen2-VL or Qwen2.5-VL becomes MindSpeed-MM's files with its names, order of rows
//          and cuts over tensor ranks, stages and virtual stages, and these become the folder again, byte for byte;
//          lists and sizes that do not fit are refused with both figures, and then nothing is written.
// World:   the tiny reference models, and a model made by rule, every element of a tensor a number of its own.
#include "engine/convert/mm/mm.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/formats/torch/torch_file.h"
#include "tests/convert/weight_folders.h"

namespace loom::checkpoint_test {
namespace {

using namespace checkpoint;
using test::fresh_folder;
using test::message_of;
using test::read_file;
using test::write_file;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

const fs::path kQwen2Vl = kReference / "vision/qwen2_vl";  // 2 layers in each tower
const fs::path kQwen25Vl = kReference / "vision/qwen2_5_vl";

// Text: 4 layers of 32, 4 heads of 8 in 2 groups, MLP of 6 rows, vocabulary of 12. Tower: 4 layers of 16, 2 heads.
std::string config_of(const std::string& type, bool tied) {
  const std::string vision = type == "qwen2_vl"
                                 ? R"("embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2)"
                                 : R"("hidden_size": 16, "out_hidden_size": 32, "intermediate_size": 10, )"
                                   R"("window_size": 8, "fullatt_block_indexes": [3])";
  return fmt::format(
      R"({{"model_type": "{}", "tie_word_embeddings": {}, "hidden_size": 32, "num_hidden_layers": 4, )"
      R"("num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 6, "vocab_size": 12, )"
      R"("max_position_embeddings": 64, "rope_scaling": {{"type": "mrope", "mrope_section": [2, 1, 1]}}, )"
      R"("image_token_id": 8, "video_token_id": 9, "vision_start_token_id": 10, "vision_end_token_id": 11, )"
      R"("vision_config": {{"depth": 4, "num_heads": 2, "in_chans": 1, "patch_size": 2, {}}}}})",
      type, tied, vision);
}

std::vector<Named> weights_of(const std::string& type, bool tied) {
  const bool is_2 = type == "qwen2_vl";
  std::vector<Named> tensors;
  const auto add = [&](const std::string& name, const Shape& shape) { tensors.push_back(counting(name, shape, 1)); };
  const auto linear = [&](const std::string& name, std::int64_t out, std::int64_t in, bool bias) {
    add(name + ".weight", {out, in});
    if (bias) add(name + ".bias", {out});
  };
  const auto norm = [&](const std::string& name, bool bias) {
    add(name + ".weight", {16});
    if (bias) add(name + ".bias", {16});
  };
  add("visual.patch_embed.proj.weight", {16, 1, 2, 2, 2});
  for (int i = 0; i < 4; ++i) {
    const std::string block = fmt::format("visual.blocks.{}.", i);
    norm(block + "norm1", is_2);
    norm(block + "norm2", is_2);
    linear(block + "attn.qkv", 48, 16, true);
    linear(block + "attn.proj", 16, 16, true);
    if (is_2) {
      linear(block + "mlp.fc1", 32, 16, true);
      linear(block + "mlp.fc2", 16, 32, true);
    } else {
      linear(block + "mlp.gate_proj", 10, 16, true);
      linear(block + "mlp.up_proj", 10, 16, true);
      linear(block + "mlp.down_proj", 16, 10, true);
    }
    const std::string layer = fmt::format("model.layers.{}.", i);
    add(layer + "input_layernorm.weight", {32});
    add(layer + "post_attention_layernorm.weight", {32});
    linear(layer + "self_attn.q_proj", 32, 32, true);
    linear(layer + "self_attn.k_proj", 16, 32, true);
    linear(layer + "self_attn.v_proj", 16, 32, true);
    linear(layer + "self_attn.o_proj", 32, 32, false);
    linear(layer + "mlp.gate_proj", 6, 32, false);
    linear(layer + "mlp.up_proj", 6, 32, false);
    linear(layer + "mlp.down_proj", 32, 6, false);
  }
  norm("visual.merger.ln_q", is_2);
  linear("visual.merger.mlp.0", 64, 64, true);
  linear("visual.merger.mlp.2", 32, 64, true);
  add("model.embed_tokens.weight", {12, 32});
  add("model.norm.weight", {32});
  if (!tied) add("lm_head.weight", {12, 32});
  return tensors;
}

fs::path make_model(const fs::path& folder, const std::string& type = "qwen2_vl", bool tied = false) {
  return hf_folder(folder, config_of(type, tied), weights_of(type, tied));
}

Converted to_mm(const fs::path& from, const fs::path& to, const MmLayout& layout) {
  return convert(HfToMm{.hf_dir = from, .mm_dir = to, .layout = layout});
}

Converted from_mm(const fs::path& from, const fs::path& to, const fs::path& hf, const MmLayout& layout) {
  return convert(MmToHf{.mm_dir = from, .save_dir = to, .hf_dir = hf, .layout = layout});
}

// name -> shape and bytes, of a rank's file.
using Tensors = std::map<std::string, std::pair<std::string, std::string>>;

Tensors tensors_in(const fs::path& folder, const std::string& rank, const std::string& key = "model") {
  const io::MappedFile file(folder / "release" / rank / "model_optim_rng.pt");
  const io::MemorySource source(file.bytes(), file.path().string());
  const io::TorchMapping mapping(source);
  Tensors tensors;
  for (const auto& [name, tensor] : mapping.tensors(key)) {
    std::string bytes(static_cast<std::size_t>(tensor.shape().numel() * element_bytes(tensor.dtype())), '\0');
    tensor.read_box(Offset(static_cast<std::size_t>(tensor.shape().ndim()), 0), tensor.shape(),
                    std::as_writable_bytes(std::span(bytes)), true);
    tensors[name] = {to_string(tensor.shape()), bytes};
  }
  return tensors;
}

std::vector<std::string> names_of(const Tensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, content] : tensors) names.push_back(name);
  return names;
}

// The elements of counting(name, {rows, columns}, 1) in these rows, one range behind another.
std::string counted_rows(std::int64_t columns, const std::vector<std::pair<std::int64_t, std::int64_t>>& ranges) {
  std::vector<float> values;
  for (const auto& [begin, end] : ranges) {
    for (std::int64_t i = begin * columns; i < end * columns; ++i) values.push_back(static_cast<float>(i + 1));
  }
  return bytes_of(values);
}

constexpr const char* kTower = "image_encoder.encoder.blocks.layers.";
constexpr const char* kText = "text_decoder.decoder.layers.";

// --- names

TEST(HfToMm, HasTheNamesOfMindSpeedMm) {
  const fs::path folder = fresh_folder();
  const fs::path model = make_model(folder / "hf");
  const Converted done = to_mm(model, folder / "mm", {{{1, 3}}, {{4, 0}}, 2});
  EXPECT_EQ(done.path, folder / "mm/release");
  EXPECT_EQ(done.files, 4);
  EXPECT_EQ(read_file(folder / "mm/latest_checkpointed_iteration.txt"), "release");
  EXPECT_THAT(names_in(folder / "mm/release"),
              UnorderedElementsAre("mp_rank_00_000", "mp_rank_00_001", "mp_rank_01_000", "mp_rank_01_001"));

  std::vector<std::string> first{
      "image_encoder.encoder.patch_embed.proj.weight",   "image_encoder.projector.layernorm.weight",
      "image_encoder.projector.layernorm.bias",          "image_encoder.projector.encoder.linear_fc1.weight",
      "image_encoder.projector.encoder.linear_fc1.bias", "image_encoder.projector.encoder.linear_fc2.weight",
      "image_encoder.projector.encoder.linear_fc2.bias", "text_decoder.embedding.word_embeddings.weight"};
  for (int i = 0; i < 4; ++i) {
    for (const char* name : {"input_layernorm", "pre_mlp_layernorm", "self_attention.linear_qkv",
                             "self_attention.linear_proj", "mlp.linear_fc1", "mlp.linear_fc2"}) {
      first.push_back(fmt::format("{}{}.{}.weight", kTower, i, name));
      first.push_back(fmt::format("{}{}.{}.bias", kTower, i, name));
    }
  }
  const auto add_text = [](std::vector<std::string>& names, int layer) {
    for (const char* name : {"input_layernorm.weight", "pre_mlp_layernorm.weight", "self_attention.linear_qkv.weight",
                             "self_attention.linear_qkv.bias", "self_attention.linear_proj.weight",
                             "mlp.linear_fc1.weight", "mlp.linear_fc2.weight"}) {
      names.push_back(fmt::format("{}{}.{}", kText, layer, name));
    }
  };
  add_text(first, 0);
  std::vector<std::string> second{"text_decoder.decoder.final_layernorm.weight", "text_decoder.output_layer.weight"};
  for (int layer = 0; layer < 3; ++layer) add_text(second, layer);  // counted from 0 in the stage
  for (const char* rank : {"mp_rank_00", "mp_rank_01"}) {
    EXPECT_THAT(names_of(tensors_in(folder / "mm", std::string(rank) + "_000")),
                ::testing::UnorderedElementsAreArray(first));
    EXPECT_THAT(names_of(tensors_in(folder / "mm", std::string(rank) + "_001")),
                ::testing::UnorderedElementsAreArray(second));
  }
}

TEST(HfToMm, NamesGateAndUpOfQwen25sTower) {
  const fs::path folder = fresh_folder();
  to_mm(make_model(folder / "hf", "qwen2_5_vl"), folder / "mm", {{{4}}, {{4}}, 2});
  const Tensors tensors = tensors_in(folder / "mm", "mp_rank_01");
  // 10 rows of each: 5 a rank.
  const auto& fc1 = tensors.at(std::string(kTower) + "2.mlp.linear_fc1.weight");
  EXPECT_EQ(fc1.first, "[10, 16]");
  EXPECT_EQ(fc1.second, counted_rows(16, {{5, 10}}) + counted_rows(16, {{5, 10}}));
  EXPECT_EQ(tensors.at(std::string(kTower) + "2.mlp.linear_fc1.bias").second,
            counted_rows(1, {{5, 10}}) + counted_rows(1, {{5, 10}}));
  EXPECT_FALSE(tensors.contains("image_encoder.projector.layernorm.bias"));
}

// --- rows and columns

TEST(HfToMm, CutsForTensorRanks) {
  const fs::path folder = fresh_folder();
  to_mm(make_model(folder / "hf"), folder / "mm", {{{4}}, {{4}}, 2});
  const Tensors second = tensors_in(folder / "mm", "mp_rank_01");
  // The second group: heads 2 and 3 of the queries, head 1 of keys and values, 8 rows each.
  const std::string qkv = std::string(kText) + "3.self_attention.linear_qkv.";
  EXPECT_EQ(second.at(qkv + "weight").first, "[32, 32]");
  EXPECT_EQ(second.at(qkv + "weight").second,
            counted_rows(32, {{16, 32}}) + counted_rows(32, {{8, 16}}) + counted_rows(32, {{8, 16}}));
  EXPECT_EQ(second.at(qkv + "bias").second,
            counted_rows(1, {{16, 32}}) + counted_rows(1, {{8, 16}}) + counted_rows(1, {{8, 16}}));
  // The tower's second head: 8 rows of each third of 16.
  EXPECT_EQ(second.at(std::string(kTower) + "1.self_attention.linear_qkv.weight").second,
            counted_rows(16, {{8, 16}, {24, 32}, {40, 48}}));
  EXPECT_EQ(second.at(std::string(kText) + "0.mlp.linear_fc1.weight").second,
            counted_rows(32, {{3, 6}}) + counted_rows(32, {{3, 6}}));
  EXPECT_EQ(second.at("text_decoder.embedding.word_embeddings.weight").second, counted_rows(32, {{6, 12}}));
  // Columns 3 to 5 of 6.
  std::vector<float> columns;
  for (int row = 0; row < 32; ++row) {
    for (int column = 3; column < 6; ++column) columns.push_back(static_cast<float>(row * 6 + column + 1));
  }
  EXPECT_EQ(second.at(std::string(kText) + "0.mlp.linear_fc2.weight").second, bytes_of(columns));
  // Whole on every rank.
  EXPECT_EQ(second.at(std::string(kTower) + "0.mlp.linear_fc2.bias").second, counted_rows(1, {{0, 16}}));
  EXPECT_EQ(second.at("image_encoder.encoder.patch_embed.proj.weight").first, "[16, 1, 2, 2, 2]");
}

TEST(HfToMm, TurnsTheTowersRowsHeadByHeadForOneRankToo) {
  const fs::path folder = fresh_folder();
  to_mm(make_model(folder / "hf"), folder / "mm", {{{4}}, {{4}}, 1});
  EXPECT_EQ(tensors_in(folder / "mm", "mp_rank_00").at(std::string(kTower) + "0.self_attention.linear_qkv.bias").second,
            counted_rows(1, {{0, 8}, {16, 24}, {32, 40}, {8, 16}, {24, 32}, {40, 48}}));
}

TEST(HfToMm, PutsWhatIsAroundALayerWhereTheLayerIs) {
  const fs::path folder = fresh_folder();
  const fs::path model = make_model(folder / "hf");
  // Stages without a layer in front of the text and behind the tower; two virtual stages.
  to_mm(model, folder / "mm", {{{0, 1}, {2, 1}}, {{2, 2}, {0, 0}}, 1});
  EXPECT_EQ(
      tensors_in(folder / "mm", "mp_rank_00_000", "model0").contains("image_encoder.encoder.patch_embed.proj.weight"),
      true);
  const Tensors second = tensors_in(folder / "mm", "mp_rank_00_001", "model0");
  EXPECT_TRUE(second.contains("image_encoder.projector.layernorm.weight"));
  EXPECT_TRUE(second.contains("text_decoder.embedding.word_embeddings.weight"));
  EXPECT_TRUE(second.contains(std::string(kTower) + "1.mlp.linear_fc1.weight"));
  EXPECT_FALSE(second.contains(std::string(kText) + "1.mlp.linear_fc1.weight"));
  EXPECT_TRUE(
      tensors_in(folder / "mm", "mp_rank_00_000", "model1").contains(std::string(kText) + "1.mlp.linear_fc1.weight"));
  EXPECT_TRUE(
      tensors_in(folder / "mm", "mp_rank_00_001", "model1").contains("text_decoder.decoder.final_layernorm.weight"));
}

TEST(HfToMm, RepeatsATiedEmbeddingOnlyWhereThereAreStages) {
  const fs::path folder = fresh_folder();
  const fs::path model = make_model(folder / "hf", "qwen2_vl", true);
  to_mm(model, folder / "one", {{{4}}, {{4}}, 1});
  EXPECT_FALSE(tensors_in(folder / "one", "mp_rank_00").contains("text_decoder.output_layer.weight"));
  to_mm(model, folder / "two", {{{2, 2}}, {{4, 0}}, 2});
  EXPECT_EQ(tensors_in(folder / "two", "mp_rank_01_001").at("text_decoder.output_layer.weight").second,
            counted_rows(32, {{6, 12}}));
}

TEST(HfToMm, ReadsTheNamesOfNewerTransformers) {
  const fs::path folder = fresh_folder();
  std::vector<Named> weights = weights_of("qwen2_vl", false);
  for (Named& tensor : weights) {
    if (tensor.name.starts_with("visual.")) {
      tensor.name = "model." + tensor.name;
    } else if (tensor.name.starts_with("model.")) {
      tensor.name = "model.language_model." + tensor.name.substr(6);
    }
  }
  const MmLayout layout{{{2, 2}}, {{4, 0}}, 2};
  const fs::path newer = hf_folder(folder / "newer", config_of("qwen2_vl", false), weights);
  to_mm(newer, folder / "mm", layout);
  to_mm(make_model(folder / "older"), folder / "mm_of_older", layout);
  for (const char* rank : {"mp_rank_00_000", "mp_rank_01_001"}) {
    EXPECT_EQ(tensors_in(folder / "mm", rank), tensors_in(folder / "mm_of_older", rank));
  }
  from_mm(folder / "mm", folder / "again", newer, layout);
  EXPECT_EQ(read_file(folder / "again/model.safetensors"), read_file(newer / "model.safetensors"));
}

// --- there and back

struct Trip {
  std::string name;
  std::string type;  // made by rule; empty: the reference model
  bool tied = false;
  MmLayout layout = {};
  fs::path reference = {};
};

void PrintTo(const Trip& trip, std::ostream* out) { *out << trip.name; }

class MmRoundTrip : public ::testing::TestWithParam<Trip> {};

TEST_P(MmRoundTrip, GivesTheFolderAgainByteForByte) {
  const Trip& trip = GetParam();
  const fs::path folder = fresh_folder();
  const fs::path model = trip.type.empty() ? trip.reference : make_model(folder / "hf", trip.type, trip.tied);
  to_mm(model, folder / "mm", trip.layout);
  from_mm(folder / "mm", folder / "again", model, trip.layout);
  EXPECT_EQ(read_file(folder / "again/model.safetensors"), read_file(model / "model.safetensors"));
  EXPECT_EQ(read_file(folder / "again/config.json"), read_file(model / "config.json"));
}

std::vector<Trip> all_trips() {
  std::vector<Trip> trips;
  const std::vector<std::pair<LayerLists, LayerLists>> of_four{
      {{{4}}, {{4}}}, {{{1, 3}}, {{4, 0}}}, {{{0, 1, 2, 1}}, {{3, 1, 0, 0}}}, {{{1, 1}, {1, 1}}, {{2, 2}, {0, 0}}}};
  for (const int tensor : {1, 2}) {
    for (std::size_t i = 0; i < of_four.size(); ++i) {
      const MmLayout layout{of_four[i].first, of_four[i].second, tensor};
      for (const char* type : {"qwen2_vl", "qwen2_5_vl"}) {
        trips.push_back({fmt::format("{}Tp{}Lists{}", type, tensor, i), type, false, layout});
      }
      if (i < 2) trips.push_back({fmt::format("TiedTp{}Lists{}", tensor, i), "qwen2_vl", true, layout});
    }
    const MmLayout two{{{1, 1}}, {{2, 0}}, tensor};
    trips.push_back({fmt::format("Reference2Tp{}", tensor), "", false, two, kQwen2Vl});
    trips.push_back({fmt::format("Reference25Tp{}", tensor), "", false, two, kQwen25Vl});
  }
  return trips;
}

INSTANTIATE_TEST_SUITE_P(All, MmRoundTrip, ::testing::ValuesIn(all_trips()),
                         [](const auto& info) { return info.param.name; });

// --- refusals

struct BadLayout {
  MmLayout layout;
  std::string message;  // CONFIG: the path of config.json
};

void PrintTo(const BadLayout& bad, std::ostream* out) { *out << bad.message; }

class BadLayouts : public ::testing::TestWithParam<BadLayout> {};

TEST_P(BadLayouts, AreRefusedWithBothFigures) {
  const fs::path folder = fresh_folder();
  const fs::path model = make_model(folder / "hf");
  std::string message = GetParam().message;
  if (const std::size_t at = message.find("CONFIG"); at != std::string::npos) {
    message.replace(at, 6, (model / "config.json").string());
  }
  EXPECT_EQ(message_of<ConfigError>([&] { to_mm(model, folder / "mm", GetParam().layout); }), message);
  EXPECT_FALSE(fs::exists(folder / "mm"));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadLayouts,
    ::testing::Values(
        BadLayout{{{}, {{4}}, 1}, "--llm-pp-layers is []; write the layers of each stage: [[1,10,10,7]]"},
        BadLayout{{{{1, 2}}, {{4, 0}}, 1},
                  "--llm-pp-layers [[1,2]] sums up to 3 layers, but CONFIG has 4 (num_hidden_layers); write numbers "
                  "that sum up to 4"},
        BadLayout{{{{2, 2}}, {{4, 1}}, 1},
                  "--vit-pp-layers [[4,1]] is more layers than CONFIG has, 4 (vision_config.depth); write numbers that "
                  "sum up to 4"},
        BadLayout{{{{2, 2}}, {{4}}, 1},
                  "--llm-pp-layers [[2,2]] and --vit-pp-layers [[4]] are not of the same stages; write as many lists "
                  "of as many numbers, 0 for a stage without layers"},
        BadLayout{{{{2, 1}, {1}}, {{4, 0}, {0, 0}}, 1},
                  "--llm-pp-layers is [[2,1],[1]]: its lists have 2 and 1 stages; write as many numbers in each"},
        BadLayout{{{{4}}, {{4}}, 4},
                  "--tp-size is 4, but CONFIG has num_key_value_heads 2, which it does not divide; write a divisor of "
                  "2"}));

class FromMm : public ::testing::Test {
 protected:
  // A checkpoint of two tensor ranks and two stages.
  void SetUp() override { to_mm(model_, mm_, layout_); }
  std::string refusal(const MmLayout& layout) {
    const std::string message = message_of<ConfigError>([&] { from_mm(mm_, folder_ / "out", model_, layout); });
    EXPECT_FALSE(fs::exists(folder_ / "out"));
    return message;
  }

  const fs::path folder_ = fresh_folder();
  const fs::path model_ = make_model(folder_ / "hf");
  const fs::path mm_ = folder_ / "mm";
  const std::string release_ = (mm_ / "release").string();
  const MmLayout layout_{{{2, 2}}, {{4, 0}}, 2};
};

TEST_F(FromMm, HoldsTheSizesAgainstTheFiles) {
  EXPECT_EQ(refusal({{{2, 2}}, {{4, 0}}, 1}),
            release_ + " has 2 tensor ranks, but --tp-size says 1; write the sizes that it was made with");
  EXPECT_EQ(refusal({{{4}}, {{4}}, 2}),
            release_ + " has 2 stages, but --llm-pp-layers says 1; write the sizes that it was made with");
  EXPECT_EQ(refusal({{{1, 1}, {1, 1}}, {{4, 0}, {0, 0}}, 2}),
            release_ + " has 1 virtual stages, but --llm-pp-layers says 2; write the sizes that it was made with");
}

// The second stage lacks a third layer: 7 tensors, 5 of them looked for on both ranks. The first one has a second: 7 on
// both ranks.
TEST_F(FromMm, ListsWhatOtherListsWouldMiss) {
  const std::string message = refusal({{{1, 3}}, {{4, 0}}, 2});
  EXPECT_THAT(message, StartsWith(release_ + ": its tensors do not match qwen2_vl by " +
                                  (model_ / "config.json").string() + ": 26 do not fit\n"));
  EXPECT_THAT(message, HasSubstr("\n  missing 'text_decoder.decoder.layers.2.input_layernorm.weight' [32] in "
                                 "mp_rank_00_001\n"));
}

TEST_F(FromMm, HoldsTheNamesAgainstThoseOfTheFolder) {
  std::vector<Named> weights = weights_of("qwen2_vl", false);
  weights.push_back(counting("visual.extra", {2}));
  write_weights(model_ / "model.safetensors", weights);
  EXPECT_THAT(refusal(layout_), HasSubstr("\n  'visual.extra' of " + (model_ / "model.safetensors").string() +
                                          " is not made of the checkpoint"));
}

TEST_F(FromMm, TakesACheckpointItselfAndWritesADtype) {
  const Converted done = convert(MmToHf{.mm_dir = mm_ / "release",
                                        .save_dir = folder_ / "again",
                                        .hf_dir = model_,
                                        .layout = layout_,
                                        .dtype = DType::kBF16});
  EXPECT_EQ(done.tensors, static_cast<std::int64_t>(weights_of("qwen2_vl", false).size()));
  EXPECT_EQ(contents(folder_ / "again/model.safetensors").at("model.norm.weight").first, "bf16 [32]");
}

TEST(HfToMm, ListsTensorsThatDoNotFit) {
  const fs::path folder = fresh_folder();
  std::vector<Named> weights = weights_of("qwen2_vl", false);
  weights.erase(weights.begin());
  weights.push_back(counting("visual.extra", {2}));
  weights.push_back(counting("model.language_model.norm.weight", {32}));
  const fs::path model = hf_folder(folder / "hf", config_of("qwen2_vl", false), weights);
  EXPECT_EQ(message_of<ConfigError>([&] {
              to_mm(model, folder / "mm", {{{4}}, {{4}}, 1});
            }),
            model.string() + ": its tensors do not match qwen2_vl by " + (model / "config.json").string() +
                ": 3 do not fit\n  'model.norm.weight' is there under two names, of older and newer transformers\n"
                "  missing 'visual.patch_embed.proj.weight' [16, 1, 2, 2, 2]\n  not expected 'visual.extra' [2]");
  EXPECT_FALSE(fs::exists(folder / "mm"));
}

TEST(HfToMm, RefusesOtherModelsByName) {
  const fs::path folder = fresh_folder();
  const fs::path model = make_model(folder / "hf");
  EXPECT_EQ(message_of<ConfigError>([&] {
              convert(HfToMm{
                  .hf_dir = model, .mm_dir = folder / "mm", .layout = {{{4}}, {{4}}, 1}, .model_type = "qwen2_5_vl"});
            }),
            "--model-type is qwen2_5_vl, but " + (model / "config.json").string() +
                " has 'qwen2_vl'; write that, or mm-convert Qwen2VLConverter");
  const fs::path text = kReference / "logits/qwen2";
  EXPECT_EQ(message_of<ConfigError>([&] {
              to_mm(text, folder / "mm", {{{4}}, {{4}}, 1});
            }),
            (text / "config.json").string() +
                ": model_type is 'qwen2', which is not converted from or to MindSpeed-MM's layout; qwen2_vl and "
                "qwen2_5_vl are. Language models: shardloom convert hf-to-mcore and mcore-to-hf");
}

TEST(HfToMm, RefusesATieWithDifferentValues) {
  const fs::path folder = fresh_folder();
  std::vector<Named> weights = weights_of("qwen2_vl", true);
  weights.push_back(counting("lm_head.weight", {12, 32}, 7));
  const fs::path model = hf_folder(folder / "hf", config_of("qwen2_vl", true), weights);
  EXPECT_THAT(message_of<ConfigError>([&] {
                to_mm(model, folder / "mm", {{{4}}, {{4}}, 1});
              }),
              HasSubstr("'lm_head.weight' and 'model.embed_tokens.weight' are one tensor by tie_word_embeddings of "));
}

}  // namespace
}  // namespace loom::checkpoint_test
