// Promise: a sparse layer's experts belong to the group of the module that is wrapped around them, or to one of their
//          own when they are wrapped; either way, on any number of ranks and with recompute, the gradients are those of
//          one rank.
// World:   Qwen3-MoE of 2 layers with 4 experts, ranks as threads; rank r sees sequence r.
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <map>

#include "engine/device/recorder.h"
#include "engine/nn/init.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "models/decoder/decoder.h"
#include "models/mixin/fsdp2_mixin.h"
#include "sharding/full_parameters.h"
#include "sharding/fully_shard.h"
#include "tests/support/issued.h"
#include "tests/support/world.h"

namespace loom::models {
namespace {

using Gradients = std::map<std::string, std::vector<double>>;
constexpr std::int64_t kSeq = 6;

DecoderConfig tiny() {
  DecoderConfig config;
  config.family = DecoderFamily::kQwen3Moe;
  config.vocab_size = 12;
  config.hidden_size = 6;
  config.intermediate_size = 5;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.head_dim = 4;
  config.max_position_embeddings = 16;
  config.initializer_range = 0.4;
  config.qk_norm = true;
  config.moe =
      MoeConfig{.num_experts = 4, .num_experts_per_tok = 2, .moe_intermediate_size = 3, .norm_topk_prob = true};
  return config;
}

double backward_of_sequence(nn::Module& model, int sequence) {
  std::vector<std::int32_t> ids, targets;
  for (int i = 0; i < kSeq; ++i) {
    ids.push_back((5 * i + 3 * sequence) % 12);
    targets.push_back((7 * i + sequence + 1) % 12);
  }
  const Tensor loss = ops::cross_entropy(model(Tensor::from(ids, {1, kSeq})), Tensor::from(targets, {1, kSeq}));
  autograd::backward(loss);
  return loss.item();
}

// The mean over `sequences` sequences, on one rank that shards nothing.
Gradients on_one_rank(int sequences) {
  Gradients gradients;
  test::run_world(1, [&](RankContext&, comm::World&) {
    const auto model = build_decoder(tiny());
    nn::materialize(*model);
    nn::init_weights(*model, 3);
    for (const Tensor& parameter : model->parameters()) parameter.set_requires_grad(true);
    for (int s = 0; s < sequences; ++s) backward_of_sequence(*model, s);
    for (auto& [path, parameter] : model->named_parameters()) {
      gradients[path] = parameter.grad().to_vector<double>();
      for (double& value : gradients[path]) value /= sequences;
    }
  });
  return gradients;
}

struct Sharded {
  double loss = 0;      // of rank 0
  Gradients gradients;  // whole
  std::vector<std::string> gathers;
  std::map<std::string, std::string> group_of;  // parameter path -> path of its group
};

Sharded sharded(int ranks, const std::string& yaml) {
  Sharded result;
  test::run_world(ranks, [&](RankContext& context, comm::World& world) {
    const auto model = build_decoder(tiny());
    models::fully_shard(*model, world, sharding::parse_fsdp2_config(yaml, "f.yaml"),
                        {.layout = sharding::GatherLayout::kBuffered, .weights = {.seed = 3}});
    device::Recorder recorder(device::Device::current());
    const double loss = backward_of_sequence(*model, context.rank());
    recorder.stop();
    // Whole gradients through the path that hands over whole parameters: they are written over the weights.
    for (auto& [path, parameter] : model->named_parameters()) {
      ASSERT_TRUE(parameter.grad().defined()) << path;
      if (parameter.numel() > 0) parameter.copy_from(parameter.grad());
    }
    Gradients whole;
    sharding::for_each_full_parameter(
        *model, [&](const std::string& path, const Tensor& full) { whole[path] = full.to_vector<double>(); });
    if (context.rank() != 0) return;
    result.loss = loss;
    result.gradients = whole;
    for (const test::Issued& entry : test::issued(recorder.recording())) {
      if (entry.is_mark() && entry.name == "AG") result.gathers.push_back(entry.subject);
    }
    for (const sharding::FsdpState* state : sharding::FsdpState::collect(*model)) {
      if (state->group() == nullptr) continue;  // everything below belongs to others
      for (const auto& param : state->group()->params()) {
        for (auto& [path, slot] : model->named_slots()) {
          if (slot->value.is_same(param->sharded())) result.group_of[path] = state->path();
        }
      }
    }
  });
  return result;
}

// fp32: rounding 2^-24 a step, some hundred steps deep, gradients of magnitude 0.1.
void expect_same(const Gradients& actual, const Gradients& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [path, values] : expected) {
    const std::vector<double>& got = actual.at(path);
    ASSERT_EQ(got.size(), values.size()) << path;
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(got[i], values[i], 2e-6) << path << " element " << i;
  }
}

const std::string kLayers = "sharding_size: auto\nsub_modules_to_wrap: ['model.layers.{*}']\n";
const std::string kLayersAndExperts =
    "sharding_size: auto\nsub_modules_to_wrap: ['model.layers.{*}', 'model.layers.{*}.mlp.experts']\n";

// The router apart too: it returns weights and indices.
const std::string kEveryPart =
    "sharding_size: auto\nsub_modules_to_wrap: ['model.layers.{*}.mlp', 'model.layers.{*}.mlp.experts', "
    "'model.layers.{*}.mlp.gate']\noutput_dtype: fp32\n";

TEST(ShardedExperts, BelongToTheirLayersGroup) {
  const Sharded result = sharded(2, kLayers);
  EXPECT_EQ(result.group_of.at("model.layers.1.mlp.experts.gate_up_proj"), "model.layers.1");
  EXPECT_EQ(result.group_of.at("model.layers.1.mlp.gate.weight"), "model.layers.1");
  EXPECT_EQ(result.gathers,
            (std::vector<std::string>{"", "model.layers.0", "model.layers.1", "", "model.layers.1", "model.layers.0"}));
}

TEST(ShardedExperts, BelongToTheirOwnGroupWhenTheyAreWrapped) {
  const Sharded result = sharded(2, kLayersAndExperts);
  EXPECT_EQ(result.group_of.at("model.layers.1.mlp.experts.gate_up_proj"), "model.layers.1.mlp.experts");
  EXPECT_EQ(result.group_of.at("model.layers.1.mlp.experts.down_proj"), "model.layers.1.mlp.experts");
  EXPECT_EQ(result.group_of.at("model.layers.1.mlp.gate.weight"), "model.layers.1");
}

TEST(ShardedExperts, HaveTheGradientsOfOneRank) {
  for (const int ranks : {2, 3}) {  // 4 experts over 3 ranks: 2, 2 and none
    const Gradients expected = on_one_rank(ranks);
    expect_same(sharded(ranks, kLayers).gradients, expected);
    expect_same(sharded(ranks, kLayersAndExperts).gradients, expected);
    expect_same(sharded(ranks, kEveryPart).gradients, expected);
  }
}

TEST(ShardedExperts, HaveTheSameBitsRecomputed) {
  const Gradients plain = sharded(2, kLayersAndExperts).gradients;
  for (const char* kind : {"true", "false"}) {
    for (const char* what : {"model.layers.{*}", "model.layers.{*}.mlp", "model.layers.{*}.mlp.experts"}) {
      const std::string recompute = fmt::format("recompute_modules: ['{}']\nuse_reentrant: {}\n", what, kind);
      EXPECT_EQ(sharded(2, kLayersAndExperts + recompute).gradients, plain) << recompute;
    }
  }
}

// bf16 keeps 8 bits: 0.4 % a rounding, some ten deep. The experts' inputs are indices, which no cast may touch, and
// weights of a router whose parameters are another group's.
TEST(ShardedExperts, WrappedApartComputeInBf16Too) {
  const Sharded exact = sharded(2, kLayersAndExperts);
  const Sharded bf16 = sharded(2, kLayersAndExperts + "param_dtype: bf16\nreduce_dtype: fp32\n");
  const auto norm = [](const Gradients& gradients) {
    double sum = 0;
    for (const auto& [path, values] : gradients) {
      for (const double value : values) sum += value * value;
    }
    return std::sqrt(sum);
  };
  EXPECT_NEAR(bf16.loss, exact.loss, 0.02);
  EXPECT_NE(bf16.loss, exact.loss);
  EXPECT_NEAR(norm(bf16.gradients) / norm(exact.gradients), 1, 0.05);
}

}  // namespace
}  // namespace loom::models
