// Promise: the first value of a parameter's element depends on seed, path and place alone: experts that ranks share,
//          cut on their first dim and on their second, and ranks that share sequences, have the weights of one rank.
// World:   Qwen3-MoE of 2 layers with 4 experts; 1 to 8 ranks as threads.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <map>

#include "engine/nn/init.h"
#include "models/decoder/decoder.h"
#include "models/mixin/fsdp2_mixin.h"
#include "sharding/full_parameters.h"
#include "tests/support/world.h"

namespace loom::models {
namespace {

using Values = std::map<std::string, std::vector<float>>;

constexpr std::uint64_t kSeed = 3;

DecoderConfig small() {
  DecoderConfig config;
  config.family = DecoderFamily::kQwen3Moe;
  config.vocab_size = 12;
  config.hidden_size = 8;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 2;
  config.head_dim = 4;
  config.max_position_embeddings = 16;
  config.initializer_range = 0.4;
  config.qk_norm = true;
  config.moe = MoeConfig{.num_experts = 4, .num_experts_per_tok = 2, .moe_intermediate_size = 5};
  return config;
}

Values on_one_rank() {
  Values values;
  test::run_world(1, [&](RankContext&, comm::World&) {
    const auto model = build_decoder(small());
    nn::materialize(*model);
    nn::init_weights(*model, kSeed);
    for (auto& [path, parameter] : model->named_parameters()) values[path] = parameter.to_vector<float>();
  });
  return values;
}

Values on_ranks(int ranks, const std::string& keys) {
  Values values;
  const std::string file = "sharding_size: auto\nsub_modules_to_wrap: ['model.layers.{*}']\n" + keys;
  test::run_world(ranks, [&](RankContext& context, comm::World& world) {
    const auto model = build_decoder(small());
    models::fully_shard(*model, world, sharding::parse_fsdp2_config(file, "f.yaml"), {.weights = {.seed = kSeed}});
    Values whole;
    sharding::for_each_full_parameter(
        *model, [&](const std::string& path, const Tensor& full) { whole[path] = full.to_vector<float>(); });
    if (context.rank() == 0) values = std::move(whole);
  });
  return values;
}

std::string experts(int ranks) {
  return fmt::format("expert_parallel_size: {}\nmoe_modules: ['model.layers.{{*}}.mlp.experts']\n", ranks);
}

TEST(FirstValues, AreThoseOfOneRank) {
  const Values one = on_one_rank();
  EXPECT_EQ(one.at("model.layers.0.mlp.experts.down_proj").size(), 4U * 8 * 5);
  for (const int ranks : {2, 3, 4}) EXPECT_EQ(on_ranks(ranks, ""), one) << ranks;
}

TEST(FirstValues, OfSharedExpertsAreThoseOfOneRank) {
  const Values one = on_one_rank();
  EXPECT_EQ(on_ranks(2, experts(2)), one);
  EXPECT_EQ(on_ranks(4, experts(2)), one) << "dim 1 over 2 ranks";
  EXPECT_EQ(on_ranks(6, experts(2)), one) << "3 does not divide dim 1: dim 0 over 3 ranks";
  EXPECT_EQ(on_ranks(4, experts(4)), one);
  EXPECT_EQ(on_ranks(8, experts(4)), one) << "one expert for two ranks";
  EXPECT_EQ(on_ranks(4, experts(2) + "reshard_local_experts: false\n"), one) << "copies";
}

TEST(FirstValues, OfRanksThatShareSequencesAreThoseOfOneRank) {
  const Values one = on_one_rank();
  EXPECT_EQ(on_ranks(2, "ring_attention_size: 2\n"), one);
  EXPECT_EQ(on_ranks(4, "ring_attention_size: 2\nulysses_parallel_size: 2\n" + experts(2)), one);
}

}  // namespace
}  // namespace loom::models
