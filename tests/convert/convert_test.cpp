// Promise: weights go from a Hugging Face folder to a checkpoint and back with their names, dtypes and bytes; what does
//          not fit is refused with its names; outputs appear whole or not at all.
// World:   the tiny reference models, and folders of a few tensors.
#include "engine/convert/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/core/error.h"
#include "engine/formats/dcp/dcp_file_writer.h"
#include "engine/formats/dcp/dcp_folder.h"
#include "models/decoder/expert_weights.h"
#include "tests/convert/weight_folders.h"

namespace loom::checkpoint_test {
namespace {

using namespace checkpoint;
using test::fresh_folder;
using test::message_of;
using test::read_file;
using test::write_file;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr const char* kUntied = R"({"model_type": "qwen2", "tie_word_embeddings": false, "torch_dtype": "float32"})";
constexpr const char* kTied = R"({"model_type": "qwen2", "tie_word_embeddings": true})";

std::vector<Named> two_matrices() {
  return {counting("lm_head.weight", {4, 2}, 100), counting("model.embed_tokens.weight", {4, 2})};
}

// --- there and back

class ReferenceModel : public ::testing::TestWithParam<const char*> {};

TEST_P(ReferenceModel, ComesBackByteForByte) {
  const fs::path folder = fresh_folder();
  const fs::path model = kReference / GetParam();
  to_dcp(model, folder / "dcp");
  EXPECT_EQ(read_file(folder / "dcp/latest_checkpointed_iteration.txt"), "release");
  EXPECT_EQ(CheckpointFolder(folder / "dcp").verify(kRelease, VerifyDepth::kChecksums).kind, Verdict::Kind::kWhole);
  to_hf(folder / "dcp", folder / "hf", model);
  EXPECT_EQ(read_file(folder / "hf/model.safetensors"), read_file(model / "model.safetensors"));
  EXPECT_EQ(read_file(folder / "hf/config.json"), read_file(model / "config.json"));
  // The same without names to go by.
  write_file(folder / "assets/config.json", read_file(model / "config.json"));
  to_hf(folder / "dcp/release", folder / "unnamed", folder / "assets");
  EXPECT_EQ(read_file(folder / "unnamed/model.safetensors"), read_file(model / "model.safetensors"));
}

INSTANTIATE_TEST_SUITE_P(All, ReferenceModel,
                         ::testing::Values("logits/gpt2", "logits/llama", "logits/qwen2", "training/qwen2_w4_bf16",
                                           "training/qwen3moe_w2", "training/internvl_w2", "vision/internvl",
                                           "vision/qwen2_vl"));

TEST(Convert, WritesAFileForEachShardAndFollowsTheIndexBack) {
  const fs::path folder = fresh_folder();
  const fs::path model = folder / "model";
  write_file(model / "config.json", kUntied);
  write_weights(model / "model-00001-of-00002.safetensors", {counting("b", {2}), counting("d", {3})});
  write_weights(model / "model-00002-of-00002.safetensors", {counting("a", {5}), counting("c", {})});
  write_file(model / "model.safetensors.index.json", R"({"metadata": {"total_size": 44}, "weight_map": {
    "a": "model-00002-of-00002.safetensors", "b": "model-00001-of-00002.safetensors",
    "c": "model-00002-of-00002.safetensors", "d": "model-00001-of-00002.safetensors"}})");
  to_dcp(model, folder / "dcp");
  EXPECT_THAT(names_in(folder / "dcp/release"),
              UnorderedElementsAre(".metadata", "__0_0.distcp", "__1_0.distcp", "shardloom_manifest.json"));
  const io::DcpFolder dcp(folder / "dcp/release");
  EXPECT_EQ(dcp.metadata().files[dcp.find("model.d")->pieces.front().file], "__0_0.distcp");
  EXPECT_EQ(dcp.value(*dcp.find("checkpoint_version")).as_real(), 3.0);
  // The assets need the index only.
  write_file(folder / "assets/config.json", kUntied);
  fs::copy(model / "model.safetensors.index.json", folder / "assets");
  to_hf(folder / "dcp", folder / "hf", folder / "assets");
  for (const char* file : {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}) {
    EXPECT_EQ(read_file(folder / "hf" / file), read_file(model / file));
  }
  EXPECT_EQ(nlohmann::json::parse(read_file(folder / "hf/model.safetensors.index.json")),
            nlohmann::json::parse(read_file(model / "model.safetensors.index.json")));
}

TEST(Convert, CutsFilesOfAShardSizeWithTheirIndex) {
  const fs::path folder = fresh_folder();
  const fs::path model = hf_folder(folder / "model", kUntied,
                                   {counting("a", {4}), counting("b", {4}), counting("c", {20}), counting("d", {1})});
  to_dcp(model, folder / "dcp");
  DcpToHf options;
  options.shard_bytes = 40;
  const Converted done = to_hf(folder / "dcp", folder / "hf", model, options);
  EXPECT_EQ(done.files, 3);
  const auto index = nlohmann::json::parse(read_file(folder / "hf/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 4 * (4 + 4 + 20 + 1));
  EXPECT_EQ(index["weight_map"].dump(),
            R"({"a":"model-00001-of-00003.safetensors","b":"model-00001-of-00003.safetensors",)"
            R"("c":"model-00002-of-00003.safetensors","d":"model-00003-of-00003.safetensors"})");
  EXPECT_EQ(contents(folder / "hf/model-00002-of-00003.safetensors").at("c"),
            contents(model / "model.safetensors").at("c"));
}

TEST(Convert, RoundsToADtypeAndSaysSoInTheConfig) {
  const fs::path folder = fresh_folder();
  const fs::path model = hf_folder(folder / "model", kUntied,
                                   {{"w", DType::kF32, {3}, bytes_of<float>({257, 1e30F, -2})},
                                    {"ids", DType::kI64, {1}, bytes_of<std::int64_t>({7})}});
  HfToDcp import;
  import.dtype = DType::kBF16;
  EXPECT_THAT(to_dcp(model, folder / "dcp", import).overflows, IsEmpty());
  to_hf(folder / "dcp", folder / "hf", model);
  const auto written = contents(folder / "hf/model.safetensors");
  EXPECT_THAT(written.at("w"), Pair("bf16 [3]", bytes_of<bf16>({bf16(256), bf16(1e30F), bf16(-2)})));
  EXPECT_THAT(written.at("ids"), Pair("int64 [1]", bytes_of<std::int64_t>({7})));
  EXPECT_EQ(nlohmann::json::parse(read_file(folder / "hf/config.json"))["torch_dtype"], "bfloat16");
  DcpToHf half;
  half.dtype = DType::kF16;
  const Converted done = to_hf(folder / "dcp", folder / "half", model, half);
  ASSERT_EQ(done.overflows.size(), 1u);
  EXPECT_EQ(done.overflows.front().name, "w");
  EXPECT_EQ(done.overflows.front().elements, 1);
}

TEST(Convert, CarriesTheFilesOfTheModel) {
  const fs::path folder = fresh_folder();
  const fs::path model = hf_folder(
      folder / "model", R"({"tie_word_embeddings": false, "auto_map": {"AutoConfig": "configuration_x.XConfig"}})",
      two_matrices());
  for (const char* name : {"tokenizer.json", "generation_config.json", "chat_template.jinja", "configuration_x.py"}) {
    write_file(model / name, name);
  }
  write_file(model / "other.py", "not named");
  to_dcp(model, folder / "dcp");
  to_hf(folder / "dcp", folder / "hf", model);
  EXPECT_THAT(names_in(folder / "hf"),
              UnorderedElementsAre("config.json", "model.safetensors", "tokenizer.json", "generation_config.json",
                                   "chat_template.jinja", "configuration_x.py"));
  EXPECT_EQ(read_file(folder / "hf/tokenizer.json"), "tokenizer.json");
}

// --- names

TEST(Convert, PutsNamesBehindPrefixesAndTakesThemOff) {
  const fs::path folder = fresh_folder();
  const fs::path model = hf_folder(folder / "model", kUntied, two_matrices());
  HfToDcp import;
  import.names = {.hf_prefix = "model.", .dcp_prefix = "language_model."};
  to_dcp(model, folder / "dcp", import);
  const io::DcpFolder dcp(folder / "dcp/release");
  EXPECT_NE(dcp.find("model.language_model.embed_tokens.weight"), nullptr);
  EXPECT_NE(dcp.find("model.lm_head.weight"), nullptr);
  DcpToHf back;
  back.names = import.names;
  to_hf(folder / "dcp", folder / "hf", model, back);
  EXPECT_EQ(read_file(folder / "hf/model.safetensors"), read_file(model / "model.safetensors"));
}

TEST(Convert, ListsNamesThatAreMissingAndNotExpected) {
  const fs::path folder = fresh_folder();
  const fs::path model = hf_folder(folder / "model", kUntied, two_matrices());
  to_dcp(model, folder / "dcp");
  const fs::path other = hf_folder(folder / "other", kUntied,
                                   {counting("lm_head.weight", {4, 2}), counting("model.embed_token.weight", {4, 2})});
  const std::string start =
      (folder / "dcp/release").string() + ": its names do not match " + (folder / "other/model.safetensors").string();
  EXPECT_EQ(message_of<ConfigError>([&] { to_hf(folder / "dcp", folder / "hf", other); }),
            start +
                ": 1 is missing, 1 is not expected\n"
                "  missing 'model.embed_token.weight'; the nearest is 'model.model.embed_tokens.weight'\n"
                "  not expected 'model.model.embed_tokens.weight'\n"
                "  check --model-assets-dir, --dcp-prefix and --hf-prefix; two names of one tensor: "
                "--tie-weight-mapping");
  EXPECT_FALSE(fs::exists(folder / "hf"));
}

TEST(Convert, ShowsWhatAWrongPrefixLooksFor) {
  const fs::path folder = fresh_folder();
  const fs::path model = hf_folder(folder / "model", kUntied, {counting("norm.weight", {2})});
  to_dcp(model, folder / "dcp");
  DcpToHf options;
  options.names.dcp_prefix = "ema.";
  EXPECT_THAT(message_of<ConfigError>([&] { to_hf(folder / "dcp", folder / "hf", model, options); }),
              ::testing::HasSubstr("\n  missing 'norm.weight', which would be 'model.ema.norm.weight'"));
  fs::remove(model / "model.safetensors");
  EXPECT_THAT(message_of<ConfigError>([&] { to_hf(folder / "dcp", folder / "hf", model, options); }),
              ::testing::HasSubstr("\n  not expected 'model.norm.weight'"));
}

TEST(Convert, RefusesTwoTensorsOfOneName) {
  const fs::path folder = fresh_folder();
  const fs::path model = hf_folder(folder / "model", kUntied, {counting("a.x", {1}), counting("x", {1})});
  HfToDcp options;
  options.names.hf_prefix = "a.";
  EXPECT_EQ(message_of<ConfigError>([&] { to_dcp(model, folder / "dcp", options); }),
            "--dcp-prefix and --hf-prefix: 'a.x' and 'x' would both be 'model.x' in the checkpoint");
  EXPECT_FALSE(fs::exists(folder / "dcp"));
}

// Same sizes, whole in itself, and of another checkpoint: the manifest alone tells.
TEST(Convert, RefusesAFileThatIsNotTheManifests) {
  const fs::path folder = fresh_folder();
  for (const auto& [name, first] : {std::pair("one", 0.0F), {"two", 5.0F}}) {
    to_dcp(hf_folder(folder / name / "hf", kUntied, {counting("w", {5, 2}, first)}), folder / name / "dcp");
  }
  const fs::path file = "dcp/release/__0_0.distcp";
  fs::copy_file(folder / "two" / file, folder / "one" / file, fs::copy_options::overwrite_existing);
  const auto text = ::testing::MatchesRegex(
      ".*/one/dcp/release: __0_0.distcp has the checksum [0-9a-f]{8}, but shardloom_manifest.json says [0-9a-f]{8}; a "
      "file is damaged, or of another checkpoint");
  const fs::path dcp = folder / "one/dcp", out = folder / "out";
  EXPECT_THAT(message_of<io::FileDamage>([&] { to_hf(dcp, out, folder / "one/hf"); }), text);
  EXPECT_THAT(message_of<io::FileDamage>([&] { convert(DcpToDcp{.load_dir = dcp, .save_dir = out, .world_size = 2}); }),
              text);
  EXPECT_FALSE(fs::exists(out));
}

TEST(Convert, RefusesACheckpointWithoutAModel) {
  const fs::path folder = fresh_folder();
  const fs::path model = hf_folder(folder / "model", kUntied, two_matrices());
  write_weights(folder / "dcp/shard.safetensors", {counting("weight", {1})});
  EXPECT_EQ(message_of<ConfigError>([&] { to_hf(folder / "dcp", folder / "hf", model); }),
            "--load-dir: " + (folder / "dcp").string() +
                " has no tensor below 'model.' among its 1 items, which begin with 'weight'; it is no checkpoint of a "
                "model");
}

// --- ties

// A checkpoint of a tied model, as FSDP2 saves it: both names.
fs::path tied_checkpoint(const fs::path& folder, float head_first) {
  hf_folder(folder / "both", kUntied,
            {counting("lm_head.weight", {4, 2}, head_first), counting("model.embed_tokens.weight", {4, 2})});
  to_dcp(folder / "both", folder / "dcp");
  return folder / "dcp";
}

TEST(Ties, LeaveTheSecondNameOutAsTransformersDoes) {
  const fs::path folder = fresh_folder();
  const fs::path dcp = tied_checkpoint(folder, 0);
  const fs::path model = hf_folder(folder / "model", kTied, {counting("model.embed_tokens.weight", {4, 2})});
  to_hf(dcp, folder / "named", model);
  EXPECT_EQ(read_file(folder / "named/model.safetensors"), read_file(model / "model.safetensors"));
  write_file(folder / "assets/config.json", kTied);
  to_hf(dcp, folder / "unnamed", folder / "assets");
  EXPECT_EQ(read_file(folder / "unnamed/model.safetensors"), read_file(model / "model.safetensors"));
}

TEST(Ties, GiveBothNamesWhereTheIndexHasBoth) {
  const fs::path folder = fresh_folder();
  const fs::path one = hf_folder(folder / "one", kTied, {counting("model.embed_tokens.weight", {4, 2})});
  to_dcp(one, folder / "dcp");
  const fs::path both = hf_folder(folder / "both", kTied, two_matrices());
  to_hf(folder / "dcp", folder / "hf", both);
  const auto written = contents(folder / "hf/model.safetensors");
  EXPECT_EQ(written.at("lm_head.weight"), written.at("model.embed_tokens.weight"));
}

// What was trained untied is exported so, whether the assets name their weights or not, and config.json says it.
TEST(Ties, AreTwoTensorsWhereTheValuesDiffer) {
  const fs::path folder = fresh_folder();
  const fs::path dcp = tied_checkpoint(folder, 1);
  write_file(folder / "assets/config.json", kTied);
  hf_folder(folder / "named", kTied, {counting("model.embed_tokens.weight", {4, 2})});
  write_file(folder / "indexed/config.json",
             R"({"model_type": "llama", "text_config": {"tie_word_embeddings": true}})");
  write_file(folder / "indexed/model.safetensors.index.json",
             R"({"weight_map": {"model.embed_tokens.weight": "model-00001-of-00001.safetensors"}})");
  for (const char* assets : {"assets", "named", "indexed"}) {
    const fs::path hf = folder / "hf" / assets;
    to_hf(dcp, hf, folder / assets);
    const auto written =
        contents(hf / (std::string(assets) == "indexed" ? "model-00001-of-00001.safetensors" : "model.safetensors"));
    EXPECT_EQ(written.size(), 2u) << assets;
    EXPECT_NE(written.at("lm_head.weight"), written.at("model.embed_tokens.weight")) << assets;
    const auto config = nlohmann::json::parse(read_file(hf / "config.json"));
    EXPECT_EQ(config.at("tie_word_embeddings"), false) << assets;
    const auto text = config.find("text_config");
    EXPECT_TRUE(text == config.end() || text->at("tie_word_embeddings") == false) << assets;
  }
}

TEST(Ties, OfTheMappingAreRefusedWhereTheValuesDiffer) {
  const fs::path folder = fresh_folder();
  const fs::path dcp = tied_checkpoint(folder, 1);
  const fs::path model = hf_folder(folder / "model", kTied, {counting("model.embed_tokens.weight", {4, 2})});
  DcpToHf options;
  options.ties = {{"lm_head.weight", "model.embed_tokens.weight"}};
  const std::string error = message_of<ConfigError>([&] { to_hf(dcp, folder / "hf", model, options); });
  EXPECT_TRUE(error.find("not expected 'model.lm_head.weight'") != std::string::npos) << error;
}

TEST(Ties, OfTheMappingAreBothInTheCheckpointAndOneOfThemComesBack) {
  const fs::path folder = fresh_folder();
  const fs::path model = hf_folder(folder / "model", kTied, {counting("model.embed_tokens.weight", {4, 2})});
  HfToDcp import;
  import.ties = {{ "lm_head.weight", "model.embed_tokens.weight" }};
  EXPECT_EQ(to_dcp(model, folder / "dcp", import).tensors, 2);
  to_hf(folder / "dcp", folder / "hf", model);
  EXPECT_EQ(read_file(folder / "hf/model.safetensors"), read_file(model / "model.safetensors"));
}

TEST(Ties, ToAnAbsentTensorNameTheNearest) {
  const fs::path folder = fresh_folder();
  const fs::path model = hf_folder(folder / "model", kTied, {counting("model.embed_tokens.weight", {4, 2})});
  HfToDcp import;
  import.ties = {{ "lm_head.weight", "model.embed_token.weight" }};
  EXPECT_EQ(message_of<ConfigError>([&] { to_dcp(model, folder / "dcp", import); }),
            "--tie-weight-mapping lm_head.weight=model.embed_token.weight: " + model.string() +
                " has no tensor 'model.embed_token.weight'; did you mean 'model.embed_tokens.weight'?");
}

// --- experts

TEST(Experts, OfFusedNamesAreTwoDimsInTheCheckpoint) {
  const fs::path folder = fresh_folder();
  const fs::path model = hf_folder(folder / "model", R"({"num_experts": 2, "tie_word_embeddings": false})",
                                   {counting("l.0.mlp.experts.gate_up_proj", {2, 3, 4})});
  HfToDcp import;
  import.fused_linear_names = {"experts.gate_up_proj"};
  to_dcp(model, folder / "dcp", import);
  EXPECT_EQ(io::DcpFolder(folder / "dcp/release").find("model.l.0.mlp.experts.gate_up_proj")->shape, (Shape{6, 4}));
  DcpToHf back;
  back.fused_linear_names = {"gate_up_proj"};
  to_hf(folder / "dcp", folder / "hf", model, back);
  EXPECT_EQ(read_file(folder / "hf/model.safetensors"), read_file(model / "model.safetensors"));
}

TEST(Experts, OfAFusedNameThatNoTensorHasAreRefused) {
  const fs::path folder = fresh_folder();
  const fs::path model = hf_folder(folder / "model", kUntied, {counting("l.0.experts.gate_up_proj", {2, 3, 4})});
  HfToDcp import;
  import.fused_linear_names = {"experts.gate_proj"};
  EXPECT_EQ(message_of<ConfigError>([&] { to_dcp(model, folder / "dcp", import); }),
            "--fused-linear-names: " + model.string() +
                " has no weight of experts named 'experts.gate_proj'; did you mean 'experts.gate_up_proj'?");
}

TEST(Experts, NeedTheirNumberAndAWholeOneEach) {
  const fs::path folder = fresh_folder();
  const fs::path model = hf_folder(folder / "model", kUntied, {counting("experts.down_proj", {2, 3, 4})});
  HfToDcp import;
  import.fused_linear_names = {"experts.down_proj"};
  to_dcp(model, folder / "dcp", import);
  DcpToHf back;
  back.fused_linear_names = import.fused_linear_names;
  EXPECT_EQ(message_of<ConfigError>([&] { to_hf(folder / "dcp", folder / "hf", model, back); }),
            "--fused-linear-names: " + (model / "config.json").string() +
                " has none of num_experts, num_local_experts, n_routed_experts; add the one of the model");
  write_file(model / "config.json", R"({"num_local_experts": 4})");
  EXPECT_EQ(message_of<ConfigError>([&] { to_hf(folder / "dcp", folder / "hf", model, back); }),
            "--fused-linear-names: 'experts.down_proj' [6, 4] has 6 rows, which 4 experts of " +
                (model / "config.json").string() + " do not divide");
}

// The reference model with a tensor for each expert and projection, as models are published.
fs::path per_expert(const fs::path& folder) {
  std::vector<Named> tensors;
  const fs::path model = kReference / "training/qwen3moe_w2";
  const io::SafetensorsFile file(model / "model.safetensors");
  for (const io::StoredTensor& tensor : file.tensors()) {
    const std::string bytes(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    const auto parts = models::expert_parts(tensor.name, tensor.shape);
    if (parts.empty()) tensors.push_back({tensor.name, tensor.dtype, tensor.shape, bytes});
    std::size_t at = 0;
    for (const models::ExpertPart& part : parts) {
      const auto size = static_cast<std::size_t>(part.shape.numel() * element_bytes(tensor.dtype));
      tensors.push_back({part.name, tensor.dtype, part.shape, bytes.substr(at, size)});
      at += size;
    }
  }
  return hf_folder(folder, read_file(model / "config.json"), tensors);
}

TEST(Experts, OneByOneComeBackByteForByte) {
  const fs::path folder = fresh_folder();
  const fs::path model = per_expert(folder / "model");
  to_dcp(model, folder / "dcp");
  to_hf(folder / "dcp", folder / "hf", model);
  EXPECT_EQ(read_file(folder / "hf/model.safetensors"), read_file(model / "model.safetensors"));
}

TEST(Experts, OfACheckpointThatFusesThemAreWrittenOneByOneWhereTheAssetsNameThemSo) {
  const fs::path folder = fresh_folder();
  to_dcp(kReference / "training/qwen3moe_w2", folder / "dcp");
  const fs::path published = per_expert(folder / "published");
  to_hf(folder / "dcp", folder / "hf", published);
  EXPECT_EQ(read_file(folder / "hf/model.safetensors"), read_file(published / "model.safetensors"));
}

// --- other numbers of ranks

const fs::path kStep10 = kReference / "training/qwen2_w4_fp32/dcp/step_10";

// Every tensor whole, by name, and how many boxes each has.
std::map<std::string, std::string> all_tensors(const fs::path& path) {
  std::map<std::string, std::string> all;
  const io::DcpFolder folder(path);
  for (const io::DcpItem& item : folder.metadata().items) {
    if (!item.is_tensor) {
      all[item.name] = folder.value(item).repr();
      continue;
    }
    std::string bytes(static_cast<std::size_t>(item.shape.numel() * element_bytes(item.dtype)), '\0');
    folder.read_box(item, Offset(static_cast<std::size_t>(item.shape.ndim()), 0), item.shape,
                    std::as_writable_bytes(std::span(bytes)));
    all[item.name] = std::string(name(item.dtype)) + to_string(item.shape) + bytes;
  }
  return all;
}

class OtherWorld : public ::testing::TestWithParam<int> {};

TEST_P(OtherWorld, HasTheSameTensorsAndValues) {
  const fs::path folder = fresh_folder();
  const Converted done = convert(DcpToDcp{.load_dir = kStep10, .save_dir = folder / "dcp", .world_size = GetParam()});
  EXPECT_EQ(done.files, GetParam());
  EXPECT_EQ(all_tensors(folder / "dcp/release"), all_tensors(kStep10));
  EXPECT_EQ(CheckpointFolder(folder / "dcp").verify(kRelease, VerifyDepth::kChecksums).kind, Verdict::Kind::kWhole);
}

INSTANTIATE_TEST_SUITE_P(All, OtherWorld, ::testing::Values(1, 2, 3, 7));

TEST(Reshard, CutsRowsAsFsdp2Does) {
  const fs::path folder = fresh_folder();
  to_dcp(hf_folder(folder / "model", kUntied, {counting("w", {5, 2}), counting("s", {})}), folder / "one");
  convert(DcpToDcp{.load_dir = folder / "one", .save_dir = folder / "four", .world_size = 4});
  const io::DcpFolder four(folder / "four/release");
  std::vector<std::string> boxes;
  for (const io::DcpPiece& piece : four.find("model.w")->pieces) {
    boxes.push_back(four.metadata().files[piece.file] + " " + describe_box(piece.offset, piece.shape));
  }
  EXPECT_THAT(boxes, ElementsAre("__0_0.distcp [2, 2] at (0, 0)", "__1_0.distcp [2, 2] at (2, 0)",
                                 "__2_0.distcp [1, 2] at (4, 0)"));
  EXPECT_EQ(four.find("model.s")->pieces.size(), 1u);
  // As torch writes it: a file without rows, which .metadata does not name.
  EXPECT_EQ(four.metadata().files.size(), 3u);
  EXPECT_EQ(fs::file_size(folder / "four/release/__3_0.distcp"), 0u);
}

TEST(Reshard, KeepsATiedTensorsBytesOnce) {
  const fs::path folder = fresh_folder();
  {
    fs::create_directories(folder / "tied");
    io::DcpFileWriter writer(folder / "tied/__0_0.distcp");
    const std::vector<float> rows{1, 2, 3, 4, 5, 6};
    io::DcpItem item{"model.a", {"model", "a"}, true, DType::kF32, {3, 2}, {}};
    item.pieces = {
        writer.tensor(item.dtype, item.shape, [&](const io::ByteSink& sink) { sink(std::as_bytes(std::span(rows))); })};
    item.pieces[0].offset = {0, 0};
    writer.finish();
    io::DcpMetadata metadata;
    metadata.files = {"__0_0.distcp"};
    metadata.items = {item, item};
    metadata.items[1].name = "model.b";
    metadata.items[1].path = {"model", "b"};
    io::write_dcp_metadata_file(folder / "tied", metadata);
  }
  const Converted done = convert(DcpToDcp{.load_dir = folder / "tied", .save_dir = folder / "two", .world_size = 2});
  EXPECT_EQ(done.tensors, 2);
  EXPECT_EQ(done.bytes, 24u);
  const io::DcpFolder two(folder / "two/release");
  EXPECT_TRUE(io::are_tied(*two.find("model.a"), *two.find("model.b")));
  EXPECT_EQ(all_tensors(folder / "two/release"), all_tensors(folder / "tied"));
}

TEST(Reshard, LeavesTheOptimizerOutAndKeepsTheIteration) {
  const fs::path folder = fresh_folder();
  fs::create_directories(folder / "run");
  fs::copy(kStep10, folder / "run/iter_0000010", fs::copy_options::recursive);
  write_file(folder / "run/latest_checkpointed_iteration.txt", "10\n");
  const Converted done =
      convert(DcpToDcp{.load_dir = folder / "run", .save_dir = folder / "dcp", .world_size = 2, .no_optim = true});
  EXPECT_GT(done.left_out, 100);
  EXPECT_EQ(read_file(folder / "dcp/latest_checkpointed_iteration.txt"), "10");
  for (const auto& [name, content] : all_tensors(folder / "dcp/iter_0000010")) {
    EXPECT_FALSE(name.starts_with("optimizer")) << name;
  }
}

// --- places

TEST(Places, OfACheckpointAreFoundOrListed) {
  const fs::path folder = fresh_folder();
  const auto refusal = [&](const fs::path& path) {
    return message_of<ConfigError>([&] { convert(DcpToDcp{.load_dir = path, .save_dir = folder / "out"}); });
  };
  EXPECT_EQ(refusal(folder / "none"),
            "--load-dir: " + (folder / "none").string() + " is not there; give the folder of a checkpoint");
  fs::create_directories(folder / "run/iter_0000010");
  fs::create_directories(folder / "run/iter_0000020");
  EXPECT_EQ(
      refusal(folder / "run"),
      "--load-dir: " + (folder / "run").string() +
          " has 2 checkpoints and no tracker that names one: iter_0000020, iter_0000010; give the folder of one of "
          "them");
  write_file(folder / "run/latest_checkpointed_iteration.txt", "30");
  EXPECT_EQ(refusal(folder / "run"),
            "--load-dir: " + (folder / "run/latest_checkpointed_iteration.txt").string() +
                " names iter_0000030, which is not there; it holds iter_0000010, iter_0000020, "
                "latest_checkpointed_iteration.txt");
  write_file(folder / "other/readme.md", "");
  EXPECT_EQ(refusal(folder / "other"),
            "--load-dir: " + (folder / "other").string() +
                " is no checkpoint: it has neither .metadata, nor safetensors files, nor checkpoints (release, "
                "iter_0000010) below it; it holds readme.md");
}

TEST(Places, ThatAreTakenAreRefused) {
  const fs::path folder = fresh_folder();
  const fs::path model = hf_folder(folder / "model", kUntied, two_matrices());
  to_dcp(model, folder / "dcp");
  EXPECT_EQ(message_of<ConfigError>([&] { to_dcp(model, folder / "dcp"); }),
            "--dcp-dir: " + (folder / "dcp/release").string() + " is there already; give a folder without checkpoints");
  write_file(folder / "hf/notes.txt", "mine");
  EXPECT_EQ(message_of<ConfigError>([&] { to_hf(folder / "dcp", folder / "hf", model); }),
            "--save-dir: " + (folder / "hf").string() +
                " holds notes.txt already (1 entries); give a folder that is new or empty");
  EXPECT_THAT(message_of<ConfigError>([&] { to_hf(folder / "dcp", model, model); }),
              ::testing::HasSubstr("is also what --model-assets-dir reads"));
  EXPECT_EQ(read_file(folder / "hf/notes.txt"), "mine");
}

TEST(Places, HaveNothingOfAConversionThatWasStopped) {
  const fs::path folder = fresh_folder();
  const fs::path model = hf_folder(folder / "model", kUntied, two_matrices());
  const CopyWatcher stop = [](std::uint64_t, std::uint64_t) { throw Error("stopped"); };
  HfToDcp import;
  import.hf_dir = model;
  import.dcp_dir = folder / "dcp";
  EXPECT_EQ(message_of<Error>([&] { convert(import, stop); }), "stopped");
  EXPECT_THAT(names_in(folder / "dcp"), IsEmpty());
  to_dcp(model, folder / "dcp");
  DcpToHf back;
  back.load_dir = folder / "dcp";
  back.save_dir = folder / "hf";
  back.model_assets_dir = model;
  EXPECT_EQ(message_of<Error>([&] { convert(back, stop); }), "stopped");
  EXPECT_THAT(names_in(folder / "hf"), IsEmpty());
  EXPECT_THAT(names_in(folder), UnorderedElementsAre("model", "dcp", "hf"));
}

TEST(Places, NeedAConfig) {
  const fs::path folder = fresh_folder();
  to_dcp(hf_folder(folder / "model", kUntied, two_matrices()), folder / "dcp");
  fs::create_directories(folder / "assets");
  EXPECT_EQ(message_of<ConfigError>([&] { to_hf(folder / "dcp", folder / "hf", folder / "assets"); }),
            "--model-assets-dir: " + (folder / "assets").string() +
                " has no config.json; give the folder of the model, with config.json and its tokenizer");
  const std::string dcp = (folder / "dcp").string();
  EXPECT_EQ(message_of<ConfigError>([&] { to_hf(folder / "dcp", folder / "hf", folder / "dcp"); }),
            "--model-assets-dir: " + dcp +
                " holds checkpoints of a run and no Hugging Face folder; make one, shardloom convert dcp-to-hf "
                "--load-dir " +
                dcp + " --save-dir DIR --model-assets-dir MODEL, and give that folder");
}

TEST(Damage, OfAPieceIsFoundWhileConverting) {
  const fs::path folder = fresh_folder();
  const fs::path model = hf_folder(folder / "model", kUntied, two_matrices());
  to_dcp(model, folder / "dcp");
  const fs::path file = folder / "dcp/release/__0_0.distcp";
  std::string bytes = read_file(file);
  const std::string values = bytes_of<float>({100, 101, 102});
  bytes[bytes.find(values)] ^= 1;
  write_file(file, bytes);
  EXPECT_THAT(message_of<io::FileDamage>([&] { to_hf(folder / "dcp", folder / "hf", model); }),
              ::testing::ContainsRegex("__0_0.distcp has the checksum [0-9a-f]{8}, but shardloom_manifest.json says "));
  EXPECT_FALSE(fs::exists(folder / "hf"));
}

}  // namespace
}  // namespace loom::checkpoint_test
