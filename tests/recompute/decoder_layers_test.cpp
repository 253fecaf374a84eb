// Promise: every way to recompute a decoder's layers - whole, in groups, core attention, dropped outputs, experts -
//          leaves the bits of losses and gradients as they are, drops the bytes of its formula, and gathers nothing
//          twice.
// World:   1 and 2 ranks as threads; Qwen2, GPT-2 and Qwen3-MoE of 4 layers, fp32, 2 x 8 tokens a rank; every layer a
//          group. With adapters: LoRA on all linear layers, dropout on.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "engine/device/recorder.h"
#include "engine/nn/functional.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "models/decoder/decoder.h"
#include "models/decoder/layer_recompute.h"
#include "models/lora/lora.h"
#include "models/mixin/fsdp2_mixin.h"
#include "tests/support/files.h"
#include "tests/support/issued.h"
#include "tests/support/world.h"

namespace loom {
namespace {

using models::LayerRecompute;
using models::RecomputeGranularity;
using models::RecomputeMethod;
using sharding::RecomputedModule;

constexpr std::int64_t kLayers = 4, kHidden = 32, kMlp = 48, kTokens = 2 * 8;
constexpr std::int64_t kHiddenBytes = kTokens * kHidden * 4, kMlpBytes = kTokens * kMlp * 4;

enum class Family { kQwen2, kGpt2, kMoe };

models::DecoderConfig shape(Family family) {
  models::DecoderConfig config;
  config.family = family == Family::kQwen2  ? models::DecoderFamily::kQwen2
                  : family == Family::kGpt2 ? models::DecoderFamily::kGpt2
                                            : models::DecoderFamily::kQwen3Moe;
  config.vocab_size = 512;
  config.hidden_size = kHidden;
  config.intermediate_size = kMlp;
  config.num_hidden_layers = kLayers;
  config.num_attention_heads = 4;
  config.num_key_value_heads = family == Family::kGpt2 ? 4 : 2;
  config.head_dim = 8;
  config.max_position_embeddings = 16;
  config.initializer_range = 0.2;
  config.qkv_bias = family != Family::kMoe;
  config.qk_norm = family == Family::kMoe;
  config.attention_output_bias = config.mlp_bias = family == Family::kGpt2;
  if (family == Family::kMoe) {
    config.moe = models::MoeConfig{
        .num_experts = 4, .num_experts_per_tok = 2, .moe_intermediate_size = 24, .norm_topk_prob = true};
  }
  return config;
}

struct Way {
  Family family = Family::kQwen2;
  int ranks = 1;
  bool fast = true;
  bool adapters = false;
  bool recompute = true;
  LayerRecompute asked = {};
  models::LayerRecomputeKind kind = {};
};

struct Trained {
  double loss = 0;
  std::vector<std::vector<float>> gradients;
  std::vector<std::string> gathers;
  std::int64_t kept_bytes = 0;  // activations between forward and backward
  std::int64_t peak_bytes = 0;  // of activations
};

Tensor tokens(int first) {
  const Tensor ids = Tensor::host({2, 8}, DType::kI32, "tokens");
  for (int i = 0; i < kTokens; ++i) ids.data<std::int32_t>()[i] = (11 * (i + first) + i * i) % 512;
  return ids;
}

std::int64_t activation_bytes(device::Device& device) {
  return device.memory().stats().by_category[device::MemCategory::kActivation];
}

void shard(nn::Module& model, comm::World& world, const Way& run) {
  if (run.adapters) {
    models::LoraOptions lora;
    lora.r = 4;
    lora.alpha = 8;
    lora.dropout = 0.3;
    lora.target_modules = {"all-linear"};
    lora.init = models::LoraInit::kRandom;
    lora.where = "test";
    models::add_lora(model, lora);
    if (run.kind.use_reentrant) models::require_embedding_gradients(model);
  }
  auto config = sharding::parse_fsdp2_config(
      fmt::format("sharding_size: auto\nsub_modules_to_wrap: ['{}.{{*}}']\n", models::decoder_layers(model)->path),
      "f");
  std::vector<std::string> said;
  if (run.recompute) config.recompute_by_path = models::recomputed_layers(model, run.asked, run.kind, said);
  models::fully_shard(model, world, config,
                      {run.fast ? sharding::GatherLayout::kFast : sharding::GatherLayout::kBuffered, {.seed = 5}});
}

Trained train_rank(RankContext& context, comm::World& world, const Way& run) {
  device::Device& device = device::Device::current();
  context.slot<nn::KernelOptions>() = run.fast ? nn::KernelOptions::fast() : nn::KernelOptions::pytorch();
  const auto model = models::build_decoder(shape(run.family));
  shard(*model, world, run);
  const device::Recorder recorder(device);
  Trained trained;
  {
    const Tensor logits = (*model)(tokens(context.rank()));
    const Tensor loss = ops::cross_entropy(logits, tokens(context.rank() + 1));
    trained.loss = loss.item();
    trained.kept_bytes = activation_bytes(device);
    autograd::backward(loss);
  }
  device.synchronize();
  trained.peak_bytes = device.memory().stats().peak_by_category[device::MemCategory::kActivation];
  for (const Tensor& parameter : model->parameters()) {
    if (!parameter.requires_grad()) continue;
    EXPECT_TRUE(parameter.grad().defined());
    trained.gradients.push_back(parameter.grad().to_vector<float>());
  }
  for (const test::Issued& entry : test::issued(recorder.recording())) {
    if (entry.name == "AG") trained.gathers.push_back(entry.subject);
  }
  return trained;
}

// Of rank 0.
Trained train(const Way& run) {
  return test::of_each_rank(
      run.ranks, [&](RankContext& context, comm::World& world) { return train_rank(context, world, run); })[0];
}

Trained plain(Way run) {
  run.recompute = false;
  return train(run);
}

LayerRecompute full(RecomputeMethod method, std::int64_t layers) {
  return {.granularity = RecomputeGranularity::kFull, .method = method, .num_layers = layers};
}
LayerRecompute selective() { return {.granularity = RecomputeGranularity::kSelective}; }
LayerRecompute activation(std::optional<std::int64_t> layers = {}) {
  return {.activation_function = true, .activation_function_num_layers = layers};
}
LayerRecompute norm(std::optional<std::int64_t> layers = {}) { return {.norm = true, .norm_num_layers = layers}; }

std::vector<std::pair<std::string, LayerRecompute>> modes(Family family) {
  LayerRecompute both = full(RecomputeMethod::kBlock, 1);
  both.activation_function = both.norm = true;
  both.activation_function_num_layers = 2;
  LayerRecompute cheap = selective();
  cheap.activation_function = cheap.norm = true;
  std::vector<std::pair<std::string, LayerRecompute>> all = {{"uniform 1", full(RecomputeMethod::kUniform, 1)},
                                                             {"uniform 2", full(RecomputeMethod::kUniform, 2)},
                                                             {"uniform 4", full(RecomputeMethod::kUniform, 4)},
                                                             {"block 3", full(RecomputeMethod::kBlock, 3)},
                                                             {"selective", selective()},
                                                             {"activation", activation()},
                                                             {"norm", norm()},
                                                             {"block 1, activation 2, norm", both},
                                                             {"selective, activation, norm", cheap}};
  if (family != Family::kMoe) return all;
  LayerRecompute experts{.norm = true, .moe_layer = true};
  all.emplace_back("experts, norm", experts);
  return all;
}

class DecoderLayers : public ::testing::TestWithParam<std::tuple<Family, int, bool>> {
 protected:
  Way way() const {
    const auto [family, ranks, fast] = GetParam();
    return {.family = family, .ranks = ranks, .fast = fast};
  }
};
using Ways = std::tuple<Family, int, bool>;
INSTANTIATE_TEST_SUITE_P(All, DecoderLayers,
                         ::testing::Values(Ways{Family::kQwen2, 1, true}, Ways{Family::kQwen2, 2, true},
                                           Ways{Family::kQwen2, 2, false}, Ways{Family::kGpt2, 1, false},
                                           Ways{Family::kGpt2, 2, true}, Ways{Family::kMoe, 1, false},
                                           Ways{Family::kMoe, 2, true}));

TEST_P(DecoderLayers, RecomputedInAnyWayHaveTheSameBits) {
  Way way = this->way();
  const Trained expected = plain(way);
  for (const auto& [name, asked] : modes(way.family)) {
    way.asked = asked;
    const Trained actual = train(way);
    EXPECT_EQ(actual.loss, expected.loss) << name;
    EXPECT_EQ(actual.gradients, expected.gradients) << name;
    EXPECT_THAT(actual.gathers, ::testing::UnorderedElementsAreArray(expected.gathers)) << name;
  }
}

TEST_P(DecoderLayers, WithAdaptersAndDropoutHaveTheSameBitsInBothKindsAndWithKeptOperators) {
  Way way = this->way();
  way.adapters = true;
  const Trained expected = plain(way);
  LayerRecompute mixed = full(RecomputeMethod::kBlock, 1);
  mixed.activation_function = mixed.norm = true;
  for (const LayerRecompute& asked : {full(RecomputeMethod::kUniform, 2), mixed}) {
    way.asked = asked;
    for (const auto& kind : {models::LayerRecomputeKind{}, models::LayerRecomputeKind{.use_reentrant = true},
                             models::LayerRecomputeKind{.keep = sharding::RecomputeKeep::kSelectedOps},
                             models::LayerRecomputeKind{.keep = sharding::RecomputeKeep::kSelectedOpsNeeded}}) {
      way.kind = kind;
      EXPECT_EQ(train(way).gradients, expected.gradients) << asked.num_layers << kind.use_reentrant;
    }
  }
}

// --- Bytes

std::int64_t dropped(Way way, const LayerRecompute& asked) {
  way.asked = asked;
  const Trained kept = plain(way), fewer = train(way);
  // The peak is where backward begins: all that is kept is there.
  EXPECT_EQ(kept.peak_bytes - fewer.peak_bytes, kept.kept_bytes - fewer.kept_bytes);
  return kept.kept_bytes - fewer.kept_bytes;
}

TEST(DroppedBytes, OfTheActivationFunctionAreThatOfItsOutput) {
  for (const std::int64_t layers : {1, 2, 4}) {
    EXPECT_EQ(dropped({.family = Family::kQwen2}, activation(layers)), layers * kMlpBytes);
    EXPECT_EQ(dropped({.family = Family::kGpt2}, activation(layers)), layers * kMlpBytes);
    // Two experts a token, of 24 each.
    EXPECT_EQ(dropped({.family = Family::kMoe}, activation(layers)), layers * kMlpBytes);
  }
}

TEST(DroppedBytes, OfNormsAreThoseOfTheirOutputs) {
  // And what the norms themselves keep a token: one fp32 number, GPT-2's two.
  constexpr std::int64_t kPerToken = 512;
  for (const std::int64_t layers : {1, 2, 4}) {
    EXPECT_EQ(dropped({.family = Family::kQwen2}, norm(layers)), layers * 2 * (kHiddenBytes + kPerToken));
    EXPECT_EQ(dropped({.family = Family::kGpt2}, norm(layers)), layers * 2 * (kHiddenBytes + 2 * kPerToken));
  }
}

TEST(DroppedBytes, OfWholeLayersAreAllButTheInputs) {
  const Way way{.family = Family::kQwen2};
  const std::int64_t one = dropped(way, full(RecomputeMethod::kBlock, 1));
  EXPECT_GT(one, 5 * kHiddenBytes);
  for (const std::int64_t layers : {2, 3, 4}) {
    EXPECT_EQ(dropped(way, full(RecomputeMethod::kBlock, layers)), layers * one);
  }
  EXPECT_EQ(dropped(way, full(RecomputeMethod::kUniform, 1)), kLayers * one);
  // A group of n keeps one input, not n.
  Way grouped = way;
  const Trained all = plain(way);
  for (const std::int64_t layers : {2, 4}) {
    grouped.asked = full(RecomputeMethod::kUniform, layers);
    EXPECT_EQ(all.kept_bytes - train(grouped).kept_bytes, kLayers * one + (kLayers - kLayers / layers) * kHiddenBytes);
  }
}

// Scores and probabilities of 4 heads x 8 x 8 in each row, and what composed attention keeps besides.
TEST(DroppedBytes, OfCoreAttentionAreItsInside) {
  const std::int64_t one_layer = dropped({.fast = false}, selective()) / kLayers;
  EXPECT_GE(one_layer, 2 * 4 * 8 * 8 * 4);
  LayerRecompute one = selective();
  EXPECT_EQ(dropped({.fast = false}, one) % kLayers, 0);
}

TEST(DroppedBytes, OfLayersOfBothKindsAddUp) {
  LayerRecompute both = full(RecomputeMethod::kBlock, 2);
  both.activation_function = true;
  both.activation_function_num_layers = 2;
  const Way way{.family = Family::kQwen2};
  EXPECT_EQ(dropped(way, both), dropped(way, full(RecomputeMethod::kBlock, 2)) + 2 * kMlpBytes);
}

// --- Gathers

TEST(GroupsOfLayers, GatherEachLayerOnceForTheSecondForwardAndItsBackward) {
  const auto gathers = [](std::int64_t layers) {
    Way way{.family = Family::kQwen2, .ranks = 2};
    way.asked = full(RecomputeMethod::kUniform, layers);
    std::string text;
    for (const std::string& path : train(way).gathers) text += path.empty() ? "R" : path.substr(path.size() - 1);
    return text;
  };
  EXPECT_EQ(gathers(1), "R0123R3210");
  // The last layer and the one ahead of it, as ever; the rest of a group in the order of forward.
  EXPECT_EQ(gathers(2), "R0123R3210");
  EXPECT_EQ(gathers(4), "R0123R3201");
}

}  // namespace
}  // namespace loom
