// Promise: Megatron-core's files become the Hugging Face folder again, bit for bit, whatever sizes they were cut for,
//          and no size has to be said; what is missing, not expected, of another shape, damaged or hostile is named,
//          and then nothing is written.
// World:   models made by rule, every element a number of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/convert/mcore/mcore.h"
#include "engine/core/error.h"
#include "engine/formats/torch/torch_file.h"
#include "engine/io/byte_source.h"
#include "engine/io/mapped_file.h"
#include "tests/convert/mcore_models.h"

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

struct Trip {
  std::string name;
  MadeModel model;
  HfToMcore options = {};
};

void PrintTo(const Trip& trip, std::ostream* out) { *out << trip.name; }

class RoundTrip : public ::testing::TestWithParam<Trip> {};

TEST_P(RoundTrip, GivesTheFolderAgainBitForBit) {
  const fs::path folder = fresh_folder();
  const fs::path model = make_model(folder / "model", GetParam().model);
  to_mcore(model, folder / "mcore", GetParam().options);
  const Converted done = from_mcore(folder / "mcore", folder / "again", model);
  EXPECT_EQ(done.tensors, static_cast<std::int64_t>(weights_of(GetParam().model).size()));
  EXPECT_EQ(contents(folder / "again/model.safetensors"), contents(model / "model.safetensors"));
  EXPECT_EQ(read_file(folder / "again/model.safetensors"), read_file(model / "model.safetensors"));
}

std::vector<Trip> all_trips() {
  std::vector<Trip> trips;
  for (const int tensor : {1, 2, 4}) {
    for (const int stages : {1, 2}) {
      HfToMcore options;
      options.tensor_size = tensor;
      options.pipeline.stages = stages;
      if (stages == 2) options.pipeline.layer_list = {1, 2};
      trips.push_back({fmt::format("Qwen2Tp{}Pp{}", tensor, stages), {}, options});
      MadeModel tied{.type = "llama", .tied = true};
      trips.push_back({fmt::format("TiedLlamaTp{}Pp{}", tensor, stages), tied, options});
    }
  }
  const MadeModel moe{.type = "qwen3_moe", .experts = 6, .expert_rows = 8};
  for (const bool grouped : {false, true}) {
    for (const int tensor : {1, 2}) {
      for (const int whole_experts : {0, 1}) {
        HfToMcore options;
        options.tensor_size = tensor;
        options.expert_size = 2;
        options.expert_tensor_size = whole_experts;
        options.grouped_experts = grouped;
        const std::string name =
            fmt::format("MoeEp2Tp{}{}{}", tensor, grouped ? "Grouped" : "", whole_experts == 1 ? "Whole" : "");
        trips.push_back({name, moe, options});
        options.pipeline = {.stages = 2, .layer_list = {2, 1}};
        trips.push_back({name + "Pp2", moe, options});
      }
    }
  }
  HfToMcore three;  // tensor and expert ranks that no count divides
  three.tensor_size = 2;
  three.expert_size = 3;
  three.expert_tensor_size = 1;
  trips.push_back({"MoeEp3Tp2Whole", moe, three});
  MadeModel fused = moe;
  fused.fused = true;
  HfToMcore grouped;
  grouped.tensor_size = grouped.expert_size = 2;
  grouped.grouped_experts = true;
  trips.push_back({"FusedMoeGrouped", fused, grouped});
  grouped.grouped_experts = false;
  trips.push_back({"FusedMoe", fused, grouped});
  trips.push_back({"Mixtral", {.type = "mixtral", .experts = 6}, grouped});
  trips.push_back({"FusedMixtral", {.type = "mixtral", .experts = 6, .fused = true}, grouped});
  const MadeModel eight{.type = "qwen3", .layers = 8};
  HfToMcore chunks;
  chunks.pipeline = {.stages = 2, .layers_per_chunk = 2};
  trips.push_back({"VirtualStages", eight, chunks});
  chunks.pipeline = {.stages = 2, .dualpipev = true};
  trips.push_back({"DualPipeV", eight, chunks});
  chunks.pipeline = {.stages = 2, .noop_layers = {3, 9}};
  trips.push_back({"Noop", eight, chunks});
  chunks.pipeline = {.stages = 2, .layers_per_chunk = 3, .noop_layers = {0, 3, 6, 9}};
  trips.push_back({"NoopInVirtualStages", eight, chunks});
  HfToMcore padded;
  padded.tensor_size = 2;
  padded.vocab_divisible_by = 32;
  trips.push_back({"PaddedFarBeyondARank", {}, padded});
  trips.push_back({"BiasOfAllOfAttention", {.type = "llama", .attention_bias = true}, padded});
  return trips;
}

INSTANTIATE_TEST_SUITE_P(All, RoundTrip, ::testing::ValuesIn(all_trips()),
                         [](const auto& info) { return info.param.name; });

class FromMcore : public ::testing::Test {
 protected:
  // A checkpoint of `made_` in `options_`'s sizes.
  void write() {
    make_model(model_, made_);
    to_mcore(model_, mcore_, options_);
  }
  std::string refusal(const fs::path& config) {
    const std::string message = message_of<ConfigError>([&] { from_mcore(mcore_, folder_ / "out", config); });
    EXPECT_TRUE(!fs::exists(folder_ / "out") || fs::is_empty(folder_ / "out"));
    return message;
  }
  std::string refusal() { return refusal(model_); }
  fs::path file(const std::string& rank) const { return mcore_ / "iter_0000001" / rank / "model_optim_rng.pt"; }

  const fs::path folder_ = fresh_folder();
  const fs::path model_ = folder_ / "model";
  const fs::path mcore_ = folder_ / "mcore";
  MadeModel made_;
  HfToMcore options_;
};

TEST_F(FromMcore, TakesACheckpointItselfToo) {
  write();
  from_mcore(mcore_ / "iter_0000001", folder_ / "again", model_);
  EXPECT_EQ(contents(folder_ / "again/model.safetensors"), contents(model_ / "model.safetensors"));
}

TEST_F(FromMcore, WritesFilesAndNamesOfTheModelsFolder) {
  write();
  fs::remove(model_ / "model.safetensors");
  write_file(model_ / "tokenizer.json", "{}");
  const Converted done = from_mcore(mcore_, folder_ / "cut", model_, {.shard_bytes = 4096});
  EXPECT_GT(done.files, 1);
  EXPECT_TRUE(fs::exists(folder_ / "cut/model.safetensors.index.json"));
  EXPECT_EQ(read_file(folder_ / "cut/tokenizer.json"), "{}");
  const Converted narrow = from_mcore(mcore_, folder_ / "bf16", model_, {.dtype = DType::kBF16});
  EXPECT_EQ(narrow.files, 1);
  EXPECT_EQ(contents(folder_ / "bf16/model.safetensors").at("model.norm.weight").first, "bf16 [8]");
  EXPECT_THAT(read_file(folder_ / "bf16/config.json"), HasSubstr("bfloat16"));
}

TEST_F(FromMcore, GivesEachExpertItsTensorsWhereTheFolderNamesNone) {
  made_ = {.type = "qwen3_moe", .experts = 2, .fused = true};
  options_.grouped_experts = true;
  write();
  const auto fused = contents(model_ / "model.safetensors");
  fs::remove(model_ / "model.safetensors");
  from_mcore(mcore_, folder_ / "again", model_);
  const auto alone = contents(folder_ / "again/model.safetensors");
  const std::string mlp = "model.layers.1.mlp.experts.";
  const std::string& gate_up = fused.at(mlp + "gate_up_proj").second;
  EXPECT_EQ(alone.at(mlp + "0.gate_proj.weight").second + alone.at(mlp + "0.up_proj.weight").second +
                alone.at(mlp + "1.gate_proj.weight").second + alone.at(mlp + "1.up_proj.weight").second,
            gate_up);
  EXPECT_EQ(alone.at(mlp + "1.down_proj.weight").first, "fp32 [8, 4]");
  EXPECT_FALSE(alone.contains(mlp + "gate_up_proj"));
}

TEST_F(FromMcore, LeavesOutTheRowsThatFillUpTheVocabulary) {
  options_.tensor_size = 2;
  options_.pad_vocab_to = 40;  // 20 a rank: the second has none of the 13
  write();
  const Converted done = from_mcore(mcore_, folder_ / "again", model_);
  EXPECT_EQ(contents(folder_ / "again/model.safetensors").at("lm_head.weight").first, "fp32 [13, 8]");
  EXPECT_EQ(done.tensors, static_cast<std::int64_t>(weights_of(made_).size()));
}

TEST_F(FromMcore, ListsWhatIsMissingNotExpectedAndOfAnotherShape) {
  write();
  MadeModel other = made_;
  other.type = "qwen3";
  other.rows = 24;
  const fs::path config = write_file(folder_ / "other/config.json", config_of(other)).parent_path();
  const std::string message = refusal(config);
  EXPECT_THAT(message, StartsWith((mcore_ / "iter_0000001").string() + ": its tensors do not match qwen3 by " +
                                  (config / "config.json").string() + ": 15 do not fit\n"));
  EXPECT_THAT(message,
              HasSubstr("\n  'decoder.layers.0.mlp.linear_fc1.weight' of mp_rank_00 is [32, 8], not [48, 8]\n"));
  EXPECT_THAT(message, HasSubstr("\n  and 9 more"));
  other.rows = 16;
  write_file(config / "config.json", config_of(other));
  const std::string names = refusal(config);
  EXPECT_THAT(names, HasSubstr("\n  missing 'decoder.layers.0.self_attention.k_layernorm.weight' [2] in mp_rank_00\n"));
  EXPECT_THAT(names, HasSubstr("and 3 more"));
  MadeModel plain = made_;
  plain.type = "llama";
  write_file(config / "config.json", config_of(plain));
  EXPECT_THAT(refusal(config), HasSubstr("\n  not expected 'decoder.layers.2.self_attention.linear_qkv.bias' [32] in "
                                         "mp_rank_00"));
}

TEST_F(FromMcore, HoldsTheNumberOfLayersAgainstTheConfig) {
  options_.pipeline = {.stages = 2, .layer_list = {1, 2}};
  write();
  MadeModel other = made_;
  other.layers = 4;
  const fs::path config = write_file(folder_ / "other/config.json", config_of(other)).parent_path();
  EXPECT_EQ(refusal(config), (mcore_ / "iter_0000001").string() + " has 3 layers in 2 stages, but " +
                                 (config / "config.json").string() +
                                 " has 4 (num_hidden_layers); give the folder of the model with --hf-cfg-dir");
}

TEST_F(FromMcore, HoldsTheNamesAgainstThoseOfTheFolder) {
  write();
  std::vector<Named> weights = weights_of(made_);
  weights.push_back(counting("model.extra", {2}));
  write_weights(model_ / "model.safetensors", weights);
  EXPECT_THAT(refusal(), HasSubstr("\n  'model.extra' of " + (model_ / "model.safetensors").string() +
                                   " is not made of the checkpoint"));
}

TEST_F(FromMcore, NamesARankWithoutAFile) {
  options_.tensor_size = options_.pipeline.stages = 2;
  options_.pipeline.layer_list = {1, 2};
  write();
  fs::remove(file("mp_rank_01_000"));
  EXPECT_EQ(refusal(), "--load-dir: " + file("mp_rank_01_000").string() +
                           " is missing; give a checkpoint with the files of all ranks");
  fs::remove(file("mp_rank_01_000").parent_path());
  EXPECT_EQ(refusal(),
            (mcore_ / "iter_0000001").string() +
                ": mp_rank_01_000 is missing: its 3 directories are of 2 tensor ranks, 2 stages and 1 expert "
                "ranks; give a checkpoint with the files of all ranks");
}

TEST_F(FromMcore, RefusesNamesOfDirectoriesThatAreNoRanks) {
  write();
  fs::create_directories(mcore_ / "iter_0000001/mp_rank_0x");
  EXPECT_THAT(refusal(), HasSubstr("mp_rank_0x is no directory of a rank, such as mp_rank_00, mp_rank_00_001 or "));
  fs::remove(mcore_ / "iter_0000001/mp_rank_0x");
  fs::copy(mcore_ / "iter_0000001/mp_rank_00", mcore_ / "iter_0000001/mp_rank_000");
  EXPECT_THAT(refusal(), HasSubstr(": two directories are of the rank of mp_rank_000; give a checkpoint of one run"));
  fs::remove_all(mcore_ / "iter_0000001");
  EXPECT_THAT(refusal(), HasSubstr("names iter_0000001, which is not there"));
}

TEST_F(FromMcore, RefusesACheckpointOfAnotherKindByName) {
  make_model(model_, made_);
  to_dcp(model_, mcore_);
  EXPECT_EQ(refusal(), "--load-dir: " + (mcore_ / "release").string() +
                           " has no mp_rank_NN: it is no checkpoint of Megatron's ranks; one of "
                           "torch.distributed.checkpoint is read by shardloom convert dcp-to-hf");
}

TEST_F(FromMcore, FindsDamageByItsChecksum) {
  write();
  std::string bytes = read_file(file("mp_rank_00"));
  bytes[bytes.size() / 2] ^= 1;
  write_file(file("mp_rank_00"), bytes);
  const std::string message = refusal();
  EXPECT_THAT(message, StartsWith(file("mp_rank_00").string() + ": offset "));
  EXPECT_THAT(message, HasSubstr("checksum"));
  write_file(file("mp_rank_00"), bytes.substr(0, bytes.size() - 100));
  EXPECT_THAT(refusal(), StartsWith(file("mp_rank_00").string() + ": offset "));
}

TEST_F(FromMcore, RunsNothingOfAHostileFile) {
  write();
  fs::copy(fs::path(LOOM_SOURCE_DIR) / "tests/formats/data/evil.pt", file("mp_rank_00"),
           fs::copy_options::overwrite_existing);
  EXPECT_THAT(refusal(), HasSubstr("the pickle names posix.system, "));
  EXPECT_FALSE(fs::exists("evil_was_here"));
}

TEST_F(FromMcore, RefusesTiesThatDiffer) {
  options_.pipeline = {.stages = 2, .layer_list = {1, 2}};
  write();
  MadeModel tied = made_;
  tied.tied = true;
  const fs::path config = write_file(folder_ / "tied/config.json", config_of(tied)).parent_path();
  EXPECT_EQ(refusal(config),
            (mcore_ / "iter_0000001").string() +
                ": 'output_layer.weight' and 'embedding.word_embeddings.weight' are one tensor by tie_word_embeddings "
                "of " +
                (config / "config.json").string() +
                ", but have different values; set it to false there, if the model was trained untied");
}

TEST_F(FromMcore, RefusesAPlaceThatIsTaken) {
  write();
  write_file(folder_ / "out/notes.txt", "mine");
  EXPECT_EQ(message_of<ConfigError>([&] { from_mcore(mcore_, folder_ / "out", model_); }),
            "--save-dir: " + (folder_ / "out").string() +
                " holds notes.txt already (1 entries); give a folder that is new or empty");
  EXPECT_EQ(read_file(folder_ / "out/notes.txt"), "mine");
}

TEST_F(FromMcore, LeavesNothingWhereItIsStopped) {
  write();
  McoreToHf options{.load_dir = mcore_, .save_dir = folder_ / "parent/out", .hf_cfg_dir = model_};
  const auto stop = [](std::uint64_t, std::uint64_t) { raise<Error>("stopped"); };
  EXPECT_EQ(message_of<Error>([&] { convert(options, stop); }), "stopped");
  const auto left = names_in(folder_ / "parent");
  EXPECT_TRUE(left.empty() || (left.size() == 1 && fs::is_empty(folder_ / "parent/out")));
}

// --- what a person says of the model

TEST_F(FromMcore, HoldsWhatIsSaidOfTheModelAgainstTheConfig) {
  write();
  const std::string config = (model_ / "config.json").string();
  McoreToHf options{.load_dir = mcore_, .save_dir = folder_ / "out", .hf_cfg_dir = model_};
  options.checks = {.type_flag = "--model-type-hf qwen3", .model_types = {"qwen3"}};
  EXPECT_EQ(message_of<ConfigError>([&] { convert(options); }),
            "--model-type-hf qwen3 is for model_type qwen3, but " + config +
                " has 'qwen2'; leave the flag out, or give the folder of such a model");
  options.checks = {.layers = 4};
  EXPECT_EQ(message_of<ConfigError>([&] { convert(options); }),
            "--num-layers is 4, but " + config + " has 3 (num_hidden_layers); write 3, or leave the flag out");
  options.checks = {.layers = 4, .noop_layers = 1};
  options.checks.qkv_bias = true;
  EXPECT_EQ(convert(options).files, 1);
  MadeModel llama;
  llama.type = "llama";
  HfToMcore import;
  import.checks.qkv_bias = true;
  EXPECT_EQ(message_of<ConfigError>([&] { to_mcore(make_model(folder_ / "llama", llama), folder_ / "no", import); }),
            "--add-qkv-bias is given, but " + (folder_ / "llama/config.json").string() +
                " is of a llama model without biases of queries, keys and values; remove it");
}

TEST(ModelShape, RefusesSizesThatAreNone) {
  const fs::path folder = fresh_folder();
  MadeModel model;
  model.layers = 2'000'000'000;
  write_file(folder / "config.json", config_of(model));
  EXPECT_THAT(message_of<ConfigError>([&] { to_mcore(folder, folder / "out"); }),
              HasSubstr("num_hidden_layers is 2000000000; it must be at most 4096"));
  model.layers = 4096;
  write_weights(folder / "model.safetensors", {counting("model.norm.weight", {8})});
  write_file(folder / "config.json", config_of(model));
  EXPECT_THAT(message_of<ConfigError>([&] { to_mcore(folder, folder / "out"); }),
              HasSubstr("config.json: 1000 or more do not fit\n  missing 'model.embed_tokens.weight' [13, 8]\n"));
  model.layers = 3;
  model.heads = 6;
  write_file(folder / "config.json", config_of(model));
  EXPECT_THAT(message_of<ConfigError>([&] { to_mcore(folder, folder / "out"); }),
              HasSubstr("num_attention_heads is 6; it must be a multiple of num_key_value_heads (4)"));
}

}  // namespace
}  // namespace loom::checkpoint_test
