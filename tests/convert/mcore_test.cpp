// Promise: a Hugging Face folder becomes Megatron-core's files: names, order of rows, numbers of layers and cuts over
//          tensor, pipeline and expert ranks are Megatron's, and every value is the folder's; what cannot be cut is
//          refused with both figures, and nothing is left behind.
// World:   the tiny reference models.
#include "engine/convert/mcore/mcore.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/convert/mcore/mcore_layers.h"
#include "engine/core/error.h"
#include "engine/formats/torch/torch_file.h"
#include "tests/convert/mcore_models.h"

namespace loom::checkpoint_test {
namespace {

using namespace checkpoint;
using test::fresh_folder;
using test::message_of;
using test::read_file;
using test::write_file;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

const fs::path kQwen2 = kReference / "logits/qwen2";        // 4 heads, 2 groups of 16, bias, untied
const fs::path kMoe = kReference / "training/qwen3moe_w2";  // 8 experts of 48 rows, norms of heads
constexpr std::int64_t kHidden = 64;

using Tensors = std::map<std::string, std::string>;  // name -> bytes

Tensors tensors_in(const fs::path& folder, const std::string& rank, const std::string& key = "model") {
  const io::MappedFile file(folder / "iter_0000001" / rank / "model_optim_rng.pt");
  const io::MemorySource source(file.bytes(), file.path().string());
  const io::TorchMapping mapping(source);
  Tensors tensors;
  for (const auto& [name, tensor] : mapping.tensors(key)) {
    std::string bytes(static_cast<std::size_t>(tensor.shape().numel() * element_bytes(tensor.dtype())), '\0');
    tensor.read_box(Offset(static_cast<std::size_t>(tensor.shape().ndim()), 0), tensor.shape(),
                    std::as_writable_bytes(std::span(bytes)), true);
    tensors[name] = bytes;
  }
  return tensors;
}

std::string of(const fs::path& model, const std::string& name) {
  return contents(model / "model.safetensors").at(name).second;
}

// Rows of a matrix of fp32.
std::string rows(const std::string& bytes, std::int64_t begin, std::int64_t count, std::int64_t columns = kHidden) {
  const auto row = static_cast<std::size_t>(columns * 4);
  return bytes.substr(static_cast<std::size_t>(begin) * row, static_cast<std::size_t>(count) * row);
}

std::string columns(const std::string& bytes, std::int64_t all, std::int64_t begin, std::int64_t count) {
  std::string part;
  for (std::size_t at = 0; at < bytes.size(); at += static_cast<std::size_t>(all * 4)) {
    part += bytes.substr(at + static_cast<std::size_t>(begin * 4), static_cast<std::size_t>(count * 4));
  }
  return part;
}

std::string transposed(const std::string& bytes, std::int64_t all) {
  std::string turned;
  for (std::int64_t column = 0; column < all; ++column) turned += columns(bytes, all, column, 1);
  return turned;
}

TEST(HfToMcore, GroupsQueriesWithTheirKeyAndValue) {
  const fs::path out = fresh_folder() / "mcore";
  const Converted done = to_mcore(kQwen2, out);
  EXPECT_EQ(done.path, out / "iter_0000001");
  EXPECT_EQ(done.files, 1);
  EXPECT_EQ(read_file(out / "latest_checkpointed_iteration.txt"), "1");
  const Tensors tensors = tensors_in(out, "mp_rank_00");
  const std::string layer = "model.layers.1.self_attn.";
  for (const auto& [kind, width] : {std::pair("weight", kHidden), std::pair("bias", std::int64_t{1})}) {
    const std::string q = of(kQwen2, layer + "q_proj." + kind);
    const std::string k = of(kQwen2, layer + "k_proj." + kind);
    const std::string v = of(kQwen2, layer + "v_proj." + kind);
    std::string expected;
    for (std::int64_t group : {0, 1}) {
      expected += rows(q, group * 32, 32, width) + rows(k, group * 16, 16, width) + rows(v, group * 16, 16, width);
    }
    EXPECT_EQ(tensors.at(std::string("decoder.layers.1.self_attention.linear_qkv.") + kind), expected);
  }
  EXPECT_EQ(tensors.at("embedding.word_embeddings.weight"), of(kQwen2, "model.embed_tokens.weight"));
  EXPECT_EQ(tensors.at("output_layer.weight"), of(kQwen2, "lm_head.weight"));
  EXPECT_EQ(tensors.at("decoder.final_layernorm.weight"), of(kQwen2, "model.norm.weight"));
  EXPECT_EQ(tensors.size(), 3u + 4 * 7);
}

TEST(HfToMcore, CutsRowsThatPutTogetherAreThoseOfOneRank) {
  const fs::path folder = fresh_folder();
  to_mcore(kQwen2, folder / "one");
  HfToMcore options;
  options.tensor_size = 2;
  to_mcore(kQwen2, folder / "two", options);
  const Tensors one = tensors_in(folder / "one", "mp_rank_00");
  const Tensors first = tensors_in(folder / "two", "mp_rank_00");
  const Tensors second = tensors_in(folder / "two", "mp_rank_01");
  for (const char* name :
       {"decoder.layers.0.self_attention.linear_qkv.weight", "decoder.layers.0.self_attention.linear_qkv.bias",
        "embedding.word_embeddings.weight", "output_layer.weight"}) {
    EXPECT_EQ(first.at(name) + second.at(name), one.at(name)) << name;
  }
  const std::string mlp = "model.layers.0.mlp.";
  EXPECT_EQ(second.at("decoder.layers.0.mlp.linear_fc1.weight"),
            rows(of(kQwen2, mlp + "gate_proj.weight"), 86, 86) + rows(of(kQwen2, mlp + "up_proj.weight"), 86, 86));
  EXPECT_EQ(second.at("decoder.layers.0.mlp.linear_fc2.weight"),
            columns(of(kQwen2, mlp + "down_proj.weight"), 172, 86, 86));
  EXPECT_EQ(second.at("decoder.layers.0.self_attention.linear_proj.weight"),
            columns(of(kQwen2, "model.layers.0.self_attn.o_proj.weight"), 64, 32, 32));
  EXPECT_EQ(second.at("decoder.layers.0.input_layernorm.weight"), one.at("decoder.layers.0.input_layernorm.weight"));
}

TEST(HfToMcore, NumbersLayersFromZeroInEachStageOfAList) {
  const fs::path out = fresh_folder() / "mcore";
  HfToMcore options;
  options.pipeline = {.stages = 2, .layer_list = {1, 3}};
  to_mcore(kQwen2, out, options);
  const Tensors first = tensors_in(out, "mp_rank_00_000");
  const Tensors last = tensors_in(out, "mp_rank_00_001");
  EXPECT_EQ(first.size(), 1u + 7);
  EXPECT_EQ(last.size(), 2u + 3 * 7);
  EXPECT_EQ(last.at("decoder.layers.2.mlp.linear_fc2.weight"), of(kQwen2, "model.layers.3.mlp.down_proj.weight"));
}

TEST(HfToMcore, GivesExpertRanksTheirExpertsAloneOrGrouped) {
  const fs::path folder = fresh_folder();
  HfToMcore options;
  options.expert_size = 2;
  to_mcore(kMoe, folder / "alone", options);
  options.grouped_experts = true;
  to_mcore(kMoe, folder / "grouped", options);
  const Tensors alone = tensors_in(folder / "alone", "mp_rank_00_001");
  const Tensors grouped = tensors_in(folder / "grouped", "mp_rank_00_001");
  const std::string fc1 = of(kMoe, "model.layers.2.mlp.experts.gate_up_proj");  // [8, 96, 64]
  const std::string fc2 = of(kMoe, "model.layers.2.mlp.experts.down_proj");     // [8, 64, 48]
  std::string weight1;
  std::string weight2;
  for (std::int64_t expert = 4; expert < 8; ++expert) {
    const std::string to = fmt::format("decoder.layers.2.mlp.experts.local_experts.{}.", expert - 4);
    EXPECT_EQ(alone.at(to + "linear_fc1.weight"), rows(fc1, expert * 96, 96));
    EXPECT_EQ(alone.at(to + "linear_fc2.weight"), rows(fc2, expert * 64, 64, 48));
    weight1 += transposed(rows(fc1, expert * 96, 96), 64);
    weight2 += transposed(rows(fc2, expert * 64, 64, 48), 48);
  }
  EXPECT_EQ(grouped.at("decoder.layers.2.mlp.experts.weight1"), weight1);
  EXPECT_EQ(grouped.at("decoder.layers.2.mlp.experts.weight2"), weight2);
  EXPECT_EQ(grouped.at("decoder.layers.2.mlp.router.weight"), of(kMoe, "model.layers.2.mlp.gate.weight"));
  EXPECT_EQ(grouped.at("decoder.layers.2.self_attention.k_layernorm.weight"),
            of(kMoe, "model.layers.2.self_attn.k_norm.weight"));
}

TEST(HfToMcore, PadsTheVocabularyWithItsLastRow) {
  const fs::path out = fresh_folder() / "mcore";
  HfToMcore options;
  options.tensor_size = 2;
  options.vocab_divisible_by = 80;  // 256 rows become 320
  to_mcore(kQwen2, out, options);
  const std::string embedding = of(kQwen2, "model.embed_tokens.weight");
  std::string expected = rows(embedding, 160, 96);
  for (int i = 0; i < 64; ++i) expected += rows(embedding, 255, 1);
  EXPECT_EQ(tensors_in(out, "mp_rank_01").at("embedding.word_embeddings.weight"), expected);
}

TEST(HfToMcore, RefusesWhatCannotBeCutAndLeavesNothing) {
  const fs::path out = fresh_folder() / "mcore";
  HfToMcore options;
  options.tensor_size = 4;
  const std::string config = (kQwen2 / "config.json").string();
  EXPECT_EQ(message_of<ConfigError>([&] { to_mcore(kQwen2, out, options); }),
            "--target-tensor-parallel-size is 4, but " + config +
                " has 2 key-value heads (num_key_value_heads), which it does not divide; write a divisor of 2");
  options = {};
  options.pipeline = {.stages = 2, .layer_list = {1, 2}};
  EXPECT_EQ(message_of<ConfigError>([&] { to_mcore(kQwen2, out, options); }),
            "--num-layer-list 1,2 sums up to 3 layers, but the model has 4; write numbers that sum up to 4");
  EXPECT_FALSE(fs::exists(out));
  EXPECT_THAT(message_of<ConfigError>([&] { to_mcore(kReference / "logits/gpt2", out); }),
              HasSubstr("model_type is 'gpt2', which is not converted"));
}

TEST(HfToMcore, ListsTensorsThatDoNotFit) {
  const fs::path folder = fresh_folder();
  const fs::path model = hf_folder(folder / "model", read_file(kQwen2 / "config.json"),
                                   {counting("model.norm.weight", {63}), counting("extra", {2})});
  const std::string message = message_of<ConfigError>([&] { to_mcore(model, folder / "out"); });
  EXPECT_THAT(message, HasSubstr("\n  'model.norm.weight' is [63], not [64]\n"));
  EXPECT_THAT(message, HasSubstr("\n  missing 'lm_head.weight' [256, 64]\n"));
  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST(HfToMcore, RefusesPartsOfTwoDtypes) {
  const fs::path folder = fresh_folder();
  const fs::path model = make_model(folder / "model", {});
  std::vector<Named> weights = weights_of({});
  for (Named& tensor : weights) {
    if (tensor.name != "model.layers.0.self_attn.k_proj.bias") continue;
    tensor.dtype = DType::kF64;
    tensor.bytes += tensor.bytes;
  }
  write_weights(model / "model.safetensors", weights);
  EXPECT_EQ(message_of<ConfigError>([&] { to_mcore(model, folder / "out"); }),
            "'model.layers.0.self_attn.q_proj.bias' of model.safetensors is fp32 and "
            "'model.layers.0.self_attn.k_proj.bias' of model.safetensors is fp64, but both are parts of "
            "'decoder.layers.0.self_attention.linear_qkv.bias'; store them in one dtype");
  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST(HfToMcore, WritesTheTiedOutputOnlyWhereItIsOnAnotherStage) {
  const fs::path folder = fresh_folder();
  const fs::path model = make_model(folder / "model", {.type = "llama", .tied = true});
  to_mcore(model, folder / "one");
  EXPECT_FALSE(tensors_in(folder / "one", "mp_rank_00").contains("output_layer.weight"));
  HfToMcore options;
  options.pipeline = {.stages = 3};
  to_mcore(model, folder / "three", options);
  EXPECT_EQ(tensors_in(folder / "three", "mp_rank_00_002").at("output_layer.weight"),
            of(model, "model.embed_tokens.weight"));
}

TEST(HfToMcore, PutsChunksOfVirtualStagesUnderTheirNumbers) {
  const fs::path folder = fresh_folder();
  const fs::path model = make_model(folder / "model", {.type = "llama", .layers = 4});
  HfToMcore options;
  options.pipeline = {.stages = 2, .layers_per_chunk = 1};
  to_mcore(model, folder / "mcore", options);
  const std::string name = "decoder.layers.0.input_layernorm.weight";
  for (const auto& [rank, key, layer] :
       {std::tuple("mp_rank_00_000", "model0", 0), std::tuple("mp_rank_00_001", "model0", 1),
        std::tuple("mp_rank_00_000", "model1", 2), std::tuple("mp_rank_00_001", "model1", 3)}) {
    EXPECT_EQ(tensors_in(folder / "mcore", rank, key).at(name),
              of(model, fmt::format("model.layers.{}.input_layernorm.weight", layer)));
  }
  EXPECT_TRUE(tensors_in(folder / "mcore", "mp_rank_00_001", "model1").contains("decoder.final_layernorm.weight"));
}

TEST(HfToMcore, LeavesNothingWhereItIsStopped) {
  const fs::path folder = fresh_folder();
  const HfToMcore options{.load_dir = make_model(folder / "model", {}), .save_dir = folder / "mcore"};
  std::uint64_t all = 0;
  const auto stop = [&](std::uint64_t done, std::uint64_t all_bytes) {
    all = all_bytes;
    if (done > all_bytes / 2) raise<Error>("stopped");
  };
  EXPECT_EQ(message_of<Error>([&] { convert(options, stop); }), "stopped");
  EXPECT_GT(all, 0u);
  EXPECT_TRUE(fs::is_empty(folder / "mcore"));
}

TEST(HfToMcore, RefusesAFolderWithACheckpoint) {
  const fs::path folder = fresh_folder();
  const fs::path model = make_model(folder / "model", {});
  to_mcore(model, folder / "mcore");
  const std::string before = read_file(folder / "mcore/iter_0000001/mp_rank_00/model_optim_rng.pt");
  EXPECT_EQ(message_of<ConfigError>([&] { to_mcore(model, folder / "mcore"); }),
            "--save-dir: " + (folder / "mcore/iter_0000001").string() +
                " is there already; give a folder without checkpoints");
  EXPECT_EQ(read_file(folder / "mcore/iter_0000001/mp_rank_00/model_optim_rng.pt"), before);
}

// --- layers

std::vector<std::vector<std::int64_t>> chunks_of(std::int64_t layers, const PipelineOptions& options) {
  const LayerPlan plan = plan_layers(layers, options);
  std::vector<std::vector<std::int64_t>> chunks(static_cast<std::size_t>(options.stages * plan.chunks));
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    const LayerPlace& place = plan.layers[i];
    chunks[static_cast<std::size_t>(place.stage * plan.chunks + place.chunk)].push_back(static_cast<std::int64_t>(i));
  }
  return chunks;
}

TEST(LayerPlan, DealsChunksOfVirtualStagesInTurn) {
  EXPECT_THAT(chunks_of(8, {.stages = 2, .layers_per_chunk = 2}),
              ElementsAre(ElementsAre(0, 1), ElementsAre(4, 5), ElementsAre(2, 3), ElementsAre(6, 7)));
  EXPECT_THAT(chunks_of(8, {.stages = 2, .dualpipev = true}),
              ElementsAre(ElementsAre(0, 1), ElementsAre(6, 7), ElementsAre(2, 3), ElementsAre(4, 5)));
}

TEST(LayerPlan, LeavesGapsForLayersWithoutWeights) {
  const LayerPlan plan = plan_layers(3, {.stages = 2, .noop_layers = {2}});
  EXPECT_THAT(plan.layers, ElementsAre(LayerPlace{0, 0, 0}, LayerPlace{0, 0, 1}, LayerPlace{1, 0, 1}));
  EXPECT_EQ(message_of<ConfigError>([] { plan_layers(3, {.stages = 2}); }),
            "3 layers (--noop-layers counted) cannot be cut into 2 stages; change the sizes, add --noop-layers, or "
            "write --num-layer-list");
}

}  // namespace
}  // namespace loom::checkpoint_test
