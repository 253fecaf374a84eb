// Promise: Megatron's words for recompute come to modules of a decoder's layers, whatever stands around the decoder;
//          what the model's layers do not allow is an error with both numbers.
// World:   no rank; decoders of 4 layers, InternVL, a reward model, adapters, a model of a user's.
#include "models/decoder/layer_recompute.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "models/decoder/reward_model.h"
#include "models/hub/model_hub.h"
#include "models/internvl/internvl.h"
#include "models/lora/lora.h"
#include "models/mixin/fsdp2_mixin.h"
#include "tests/models/own_models.h"
#include "tests/models/test_rank.h"
#include "tests/support/files.h"

namespace loom::models {
namespace {

using sharding::RecomputedModule;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::shared_ptr<nn::Module> model_of(const std::string& type, const std::string& more = "") {
  const std::string common = R"("vocab_size": 16, "num_hidden_layers": 4, "hidden_size": 8, "intermediate_size": 12,
      "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16)";
  const std::string gpt2 = R"("vocab_size": 16, "n_layer": 4, "n_embd": 8, "n_head": 2, "n_positions": 16)";
  return ModelHub::global().build(ConfigReader::from_json(
      fmt::format(R"({{"model_type": "{}", {}{}}})", type, type == "gpt2" ? gpt2 : common, more), "config.json"));
}

std::shared_ptr<nn::Module> moe() {
  return model_of("qwen3_moe", R"(, "head_dim": 4, "num_experts": 2, "num_experts_per_tok": 1,
      "moe_intermediate_size": 6, "mlp_only_layers": [1])");
}

LayerRecompute full(RecomputeMethod method, std::int64_t layers) {
  return {.granularity = RecomputeGranularity::kFull, .method = method, .num_layers = layers};
}

std::vector<std::string> chosen(const nn::Module& model, const LayerRecompute& asked, LayerRecomputeKind kind = {}) {
  std::vector<std::string> said, texts;
  for (const RecomputedModule& module : recomputed_layers(model, asked, kind, said)) {
    texts.push_back(sharding::text_of(module));
  }
  EXPECT_THAT(said, IsEmpty());
  return texts;
}

std::string refusal(const nn::Module& model, const LayerRecompute& asked) {
  std::vector<std::string> said;
  return test::message_of<ConfigError>([&] { recomputed_layers(model, asked, {}, said); });
}

TEST(LayersOfADecoder, AreFoundWhateverStandsAroundThem) {
  const test::TestRank rank;
  const auto path_of = [](const nn::Module& model) {
    const auto layers = decoder_layers(model);
    return layers ? fmt::format("{} x {}", layers->path, layers->count) : "none";
  };
  EXPECT_EQ(path_of(*model_of("qwen2")), "model.layers x 4");
  EXPECT_EQ(path_of(*model_of("gpt2")), "transformer.h x 4");
  EXPECT_EQ(path_of(*moe()), "model.layers x 4");
  const auto adapted = model_of("llama");
  LoraOptions lora;
  lora.target_modules = {"all-linear"};
  add_lora(*adapted, lora);
  EXPECT_EQ(path_of(*adapted), "model.layers x 4");
  EXPECT_EQ(path_of(*make_reward_model(model_of("qwen2"))), "model.layers x 4");
  const auto internvl =
      build_internvl(load_internvl_config(std::filesystem::path(LOOM_SOURCE_DIR) / "examples/pretrain_vlm/model.yaml"));
  EXPECT_THAT(path_of(*internvl), ::testing::StartsWith("model.language_model.layers x "));
  EXPECT_EQ(path_of(test::PlainModel()), "none");
}

TEST(FullRecompute, IsUniformOrOfTheFirstLayers) {
  const auto model = model_of("qwen2");
  const std::string l = "model.layers.";
  EXPECT_THAT(chosen(*model, full(RecomputeMethod::kUniform, 1)), ElementsAre(l + "0", l + "1", l + "2", l + "3"));
  EXPECT_THAT(chosen(*model, full(RecomputeMethod::kUniform, 2)),
              ElementsAre(l + "0 and 1 more layers", l + "2 and 1 more layers"));
  EXPECT_THAT(chosen(*model, full(RecomputeMethod::kBlock, 3)), ElementsAre(l + "0", l + "1", l + "2"));
  EXPECT_THAT(chosen(*model, full(RecomputeMethod::kBlock, 1), {.keep = sharding::RecomputeKeep::kSelectedOps}),
              ElementsAre(l + "0 (selected_ops kept)"));
}

TEST(FullRecompute, FitsTheModelsLayers) {
  const auto model = model_of("qwen2");
  EXPECT_EQ(
      refusal(*model, full(RecomputeMethod::kUniform, 3)),
      "--recompute-num-layers is 3, and Qwen2ForCausalLM has 4 layers, which --recompute-method uniform shares out "
      "evenly; use 1, 2 or 4");
  EXPECT_EQ(
      refusal(*model, full(RecomputeMethod::kUniform, 8)),
      "--recompute-num-layers is 8, and Qwen2ForCausalLM has 4 layers, which --recompute-method uniform shares out "
      "evenly; use 1, 2 or 4");
  EXPECT_EQ(refusal(*model, full(RecomputeMethod::kBlock, 5)),
            "--recompute-num-layers is 5, and Qwen2ForCausalLM has 4 layers; use at most 4");
}

TEST(CheapRecompute, TakesTheLayersThatAreNotWhole) {
  const auto model = model_of("gpt2");
  const std::string h = "transformer.h.";
  LayerRecompute asked = full(RecomputeMethod::kBlock, 2);
  asked.activation_function = true;
  asked.activation_function_num_layers = 2;
  EXPECT_THAT(chosen(*model, asked),
              ElementsAre(h + "0", h + "1", h + "2 (activation function)", h + "3 (activation function)"));
  asked.activation_function_num_layers = 1;
  asked.norm = true;
  EXPECT_THAT(chosen(*model, asked),
              ElementsAre(h + "0", h + "1", h + "2 (activation function)", h + "2 (norms)", h + "3 (norms)"));
  EXPECT_THAT(chosen(*model, {.norm = true, .norm_num_layers = 1}), ElementsAre(h + "0 (norms)"));
  EXPECT_THAT(chosen(*model, {.granularity = RecomputeGranularity::kSelective}),
              ElementsAre(h + "0 (core attention)", h + "1 (core attention)", h + "2 (core attention)",
                          h + "3 (core attention)"));
}

TEST(CheapRecompute, OfMoreLayersThanAreLeftIsRefused) {
  const auto model = model_of("qwen2");
  LayerRecompute asked = full(RecomputeMethod::kBlock, 3);
  asked.activation_function = true;
  asked.activation_function_num_layers = 2;
  EXPECT_EQ(refusal(*model, asked),
            "--recompute-num-layers is 3 and --recompute-activation-function-num-layers is 2, 5 together, and "
            "Qwen2ForCausalLM has 4 layers, of which none is recomputed both ways; use "
            "--recompute-activation-function-num-layers at most 1");
  asked = full(RecomputeMethod::kBlock, 4);
  asked.norm = true;
  EXPECT_EQ(refusal(*model, asked),
            "--recompute-num-layers is 4, all layers of Qwen2ForCausalLM, which leaves none for --recompute-norm; give "
            "less, or remove that");
  EXPECT_EQ(refusal(*model, {.norm = true, .norm_num_layers = 6}),
            "--recompute-norm-num-layers is 6, and Qwen2ForCausalLM has 4 layers; use at most 4");
}

TEST(SelectiveRecompute, OfFusedAttentionChangesNothingAndSaysSo) {
  std::vector<std::string> said;
  EXPECT_THAT(recomputed_layers(*model_of("qwen2"), {.granularity = RecomputeGranularity::kSelective},
                                {.fused_attention = true}, said),
              IsEmpty());
  EXPECT_THAT(said, ElementsAre("--recompute-granularity selective changes nothing here: fused attention keeps neither "
                                "scores nor softmax for backward"));
}

TEST(ExpertLayers, AreRecomputedWhereThereAreAny) {
  const std::string l = "model.layers.";
  EXPECT_THAT(chosen(*moe(), {.moe_layer = true}), ElementsAre(l + "0.mlp", l + "2.mlp", l + "3.mlp"));
  LayerRecompute asked = full(RecomputeMethod::kBlock, 3);
  asked.moe_layer = true;
  EXPECT_THAT(chosen(*moe(), asked), ElementsAre(l + "0", l + "1", l + "2", l + "3.mlp"));
  EXPECT_EQ(
      refusal(*model_of("qwen2"), {.moe_layer = true}),
      "--moe-layer-recompute is given, and no layer of Qwen2ForCausalLM that is not recomputed whole has experts; "
      "remove it");
}

TEST(RecomputeOfLayers, NeedsADecoderOfTheProgram) {
  const test::TestRank rank;
  test::PlainModel model;
  EXPECT_EQ(refusal(model, full(RecomputeMethod::kBlock, 1)),
            fmt::format("--recompute-granularity full is for the layers of a decoder that the program has, and {} has "
                        "none; list recompute_modules in the file of --fsdp2-config-path",
                        model.type_name()));
  EXPECT_EQ(test::message_of<ConfigError>(
                [&] { recompute_module(model, {.path = "layers.0", .part = sharding::RecomputedPart::kNorms}); }),
            "recompute of 'layers.0 (norms)': only the decoder layers of this program support this kind; recompute "
            "the whole module");
}

TEST(RecomputeOfLayers, IsAskedForOnce) {
  const auto model = model_of("qwen2");
  const RecomputedModule norms{.path = "model.layers.0", .part = sharding::RecomputedPart::kNorms};
  recompute_module(*model, norms);
  EXPECT_EQ(test::message_of<ConfigError>([&] { recompute_module(*model, norms); }),
            "recompute of 'model.layers.0 (norms)' was requested twice; each part can be recomputed once");
}

TEST(GroupsOfLayers, HaveNoLayerInCommon) {
  const auto model = model_of("qwen2");
  recompute_module(*model, {.path = "model.layers.0", .use_reentrant = false, .layers = 2});
  recompute_module(*model, {.path = "model.layers.2", .use_reentrant = false, .layers = 2});
  EXPECT_EQ(test::message_of<ConfigError>([&] {
              recompute_module(*model, {.path = "model.layers.1", .use_reentrant = false, .layers = 3});
            }).substr(0, 20),
            "recompute of 'model.");
}

TEST(RecomputeInWords, IsALineForEachKind) {
  const auto lines = [](std::vector<RecomputedModule> modules) { return sharding::describe_recompute(modules); };
  EXPECT_THAT(lines({}), IsEmpty());
  EXPECT_THAT(lines({{"a"}, {"b"}}), ElementsAre("2 of the modules recomputed in backward, reentrant"));
  EXPECT_THAT(lines({{"a", false, sharding::RecomputeKeep::kSelectedOps},
                     {.path = "b", .use_reentrant = false, .layers = 2},
                     {.path = "c", .part = sharding::RecomputedPart::kActivationFunction},
                     {.path = "c", .part = sharding::RecomputedPart::kNorms},
                     {.path = "d", .part = sharding::RecomputedPart::kCoreAttention}}),
              ElementsAre("1 of the modules recomputed in backward, not reentrant, selected_ops kept",
                          "1 group of layers recomputed in backward, not reentrant",
                          "the output of the activation function of 1 layer dropped after its use and recomputed in "
                          "backward",
                          "the outputs of the norms of 1 layer dropped after their use and recomputed in backward",
                          "the core attention of 1 layer recomputed in backward"));
}

}  // namespace
}  // namespace loom::models
