// Promise: recompute and sharding go together in both orders and both kinds: same bits, same gathers, same order of
//          prefetch; selective recompute too.
// World:   1 and 2 ranks as threads; a Qwen2 of 3 layers, every layer, the embedding, the head and the root a group;
//          both grains (kernels and gather layout). "Inside": recompute first, sharding around it (what
//          fsdp2_config.yaml does); "outside": the other way round.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "engine/device/recorder.h"
#include "engine/launch/run_ranks.h"
#include "engine/nn/functional.h"
#include "engine/nn/init.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "models/decoder/decoder.h"
#include "recompute/checkpoint.h"
#include "sharding/fully_shard.h"
#include "tests/support/issued.h"

namespace loom {
namespace {

constexpr int kLayers = 3;
constexpr std::int64_t kHidden = 32;
constexpr std::int64_t kTokens = 2 * 8;

enum class Order { kInside, kOutside };
enum class Grain { kFast, kPytorch };

struct Way {
  int ranks = 1;
  Grain grain = Grain::kFast;
  bool use_reentrant = true;
  Order order = Order::kInside;
  recompute::Keep keep = recompute::Keep::kNothing;
};

models::DecoderConfig shape() {
  models::DecoderConfig config;
  config.vocab_size = 40;
  config.hidden_size = kHidden;
  config.intermediate_size = 48;
  config.num_hidden_layers = kLayers;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.max_position_embeddings = 16;
  config.qkv_bias = true;
  return config;
}

struct Trained {
  std::vector<double> losses;
  std::vector<std::vector<float>> gradients;  // of this rank's rows, by parameter
  std::vector<std::string> events;            // AG, W, RE, RS marks of the last step
  std::int64_t gathers() const {
    return std::ranges::count_if(events, [](const std::string& e) { return e.starts_with("AG"); });
  }
};

std::vector<nn::Module*> layers_of(nn::Module& model) {
  std::vector<nn::Module*> layers;
  for (int i = 0; i < kLayers; ++i) layers.push_back(model.find(fmt::format("model.layers.{}", i)));
  return layers;
}

void recompute_layers(nn::Module& model, const Way& way) {
  for (int i = 0; i < kLayers; ++i) {
    const std::string path = fmt::format("model.layers.{}", i);
    recompute::checkpoint(*model.find(path), {.path = path, .use_reentrant = way.use_reentrant, .keep = way.keep});
  }
}

void shard(nn::Module& model, comm::World& world, const Way& way, int forward_prefetch) {
  sharding::FullyShardOptions options;
  options.axes = sharding::FsdpAxes::over(world, way.ranks);
  options.layout = way.grain == Grain::kFast ? sharding::GatherLayout::kFast : sharding::GatherLayout::kBuffered;
  options.policy.param_dtype = DType::kBF16;
  options.policy.reduce_dtype = DType::kF32;
  options.reshard_after_forward = true;
  sharding::fully_shard(*model.find("model.embed_tokens"), options);
  for (nn::Module* layer : layers_of(model)) sharding::fully_shard(*layer, options);
  sharding::fully_shard(*model.find("lm_head"), options);
  sharding::fully_shard(model, options);
  const auto layers = layers_of(model);
  for (int i = 0; i + forward_prefetch < kLayers && forward_prefetch > 0; ++i) {
    sharding::set_modules_to_forward_prefetch(*layers[static_cast<std::size_t>(i)],
                                              {layers[static_cast<std::size_t>(i + 1)]});
  }
  sharding::materialize_shards(model);
}

Tensor tokens(int first) {
  const Tensor ids = Tensor::host({2, 8}, DType::kI32, "tokens");
  for (int i = 0; i < kTokens; ++i) ids.data<std::int32_t>()[i] = (11 * (i + first) + i * i) % 40;
  return ids;
}

Trained train_rank(RankContext& context, comm::World& world, const Way& way, bool recomputed, int forward_prefetch) {
  device::Device& device = device::Device::install(context, {});
  context.slot<nn::KernelOptions>() =
      way.grain == Grain::kFast ? nn::KernelOptions::fast() : nn::KernelOptions::pytorch();
  const auto model = models::build_decoder(shape());
  if (recomputed && way.order == Order::kInside) recompute_layers(*model, way);
  shard(*model, world, way, forward_prefetch);
  if (recomputed && way.order == Order::kOutside) recompute_layers(*model, way);
  nn::init_weights(*model, /*seed=*/5);
  device::Recorder recorder(device);
  Trained trained;
  for (int step = 0; step < 2; ++step) {  // gradients of both are added up
    recorder.clear();
    const Tensor logits = (*model)(tokens(step + context.rank()));
    const Tensor loss = ops::cross_entropy(logits, tokens(step + context.rank() + 1));
    trained.losses.push_back(loss.item());
    autograd::backward(loss);
  }
  device.synchronize();
  for (const Tensor& parameter : model->parameters()) {
    EXPECT_TRUE(parameter.grad().defined());
    trained.gradients.push_back(parameter.grad().to_vector<float>());
  }
  for (const test::Issued& entry : test::issued(recorder.recording())) {
    if (entry.is_mark()) trained.events.push_back(fmt::format("{}:{}", entry.name, entry.subject));
  }
  return trained;
}

// Of rank 0.
Trained train(const Way& way, bool recomputed, int forward_prefetch = 0) {
  Trained first;
  launch::run_ranks(way.ranks, {std::chrono::minutes(1)}, [&](RankContext& context, comm::World& world) {
    Trained own = train_rank(context, world, way, recomputed, forward_prefetch);
    if (context.rank() == 0) first = std::move(own);
  });
  return first;
}

std::string text(const Way& way) {
  return fmt::format("{}rank{}{}{}", way.ranks, way.grain == Grain::kFast ? "Fast" : "Pytorch",
                     way.use_reentrant ? "Reentrant" : "Recorded", way.order == Order::kInside ? "Inside" : "Outside") +
         (way.keep == recompute::Keep::kNothing ? "" : "Selective");
}

std::vector<Way> ways(int ranks) {
  std::vector<Way> ways;
  for (const Grain grain : {Grain::kFast, Grain::kPytorch}) {
    for (const bool use_reentrant : {true, false}) {
      for (const Order order : {Order::kInside, Order::kOutside}) ways.push_back({ranks, grain, use_reentrant, order});
    }
    for (const Order order : {Order::kInside, Order::kOutside}) {
      ways.push_back({ranks, grain, /*use_reentrant=*/false, order, recompute::Keep::kSelectedOps});
    }
  }
  return ways;
}

class RecomputeWithSharding : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(OneRank, RecomputeWithSharding, ::testing::ValuesIn(ways(1)),
                         [](const auto& i) { return text(i.param); });
INSTANTIATE_TEST_SUITE_P(TwoRanks, RecomputeWithSharding, ::testing::ValuesIn(ways(2)),
                         [](const auto& i) { return text(i.param); });

TEST_P(RecomputeWithSharding, GivesTheSameBits) {
  const Trained plain = train(GetParam(), false), recomputed = train(GetParam(), true);
  EXPECT_EQ(recomputed.losses, plain.losses);
  EXPECT_EQ(recomputed.gradients, plain.gradients);
}

TEST_P(RecomputeWithSharding, GathersNothingTwice) {
  const Trained plain = train(GetParam(), false), recomputed = train(GetParam(), true);
  // Embedding, layers, head and root: each once in forward and once in backward; none on one rank, where nothing is
  // sent.
  EXPECT_EQ(plain.gathers(), GetParam().ranks == 1 ? 0 : 2 * (kLayers + 3));
  EXPECT_EQ(recomputed.gathers(), plain.gathers());
  // Reentrant outside: a layer's own gather is waited for when it runs again, before its pre-backward; the order of
  // marks is the same all the same.
  EXPECT_EQ(recomputed.events, plain.events);
}

TEST_P(RecomputeWithSharding, DoesNotPrefetchForwardInBackward) {
  const Trained plain = train(GetParam(), false, 1), recomputed = train(GetParam(), true, 1);
  EXPECT_EQ(recomputed.events, plain.events);
  EXPECT_EQ(recomputed.gradients, plain.gradients);
}

}  // namespace
}  // namespace loom
