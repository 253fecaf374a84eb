// A whole training step of a 25 M-parameter decoder: model-FLOPs utilisation, and what sharding costs.
//
// Model     Qwen2 architecture, d 512, 8 layers, sequence 512, 4 sequences a step and rank; one rank a core, one
//           compute thread a rank.
// MFU       FLOPs of the model's mathematics (2 per weight and token forward, twice that backward; attention over the
//           causal half) over the FMA peak of as many cores, measured in the same run. Recomputation, norms, the
//           optimizer and communication count as overhead.
// Sharding  time per token of FSDP over the ranks over that of as many unsharded ranks, run in turn in the same
//           process.
// Check     before anything is timed: the sharded and the unsharded model have the same first loss (1e-5 in fp32, 2e-2
//           in bf16).
#include <algorithm>
#include <benchmark/benchmark.h>
#include <chrono>
#include <cmath>
#include <thread>

#include "bench/limits.h"
#include "engine/core/error.h"
#include "engine/core/rng.h"
#include "engine/device/device.h"
#include "engine/launch/run_ranks.h"
#include "engine/nn/init.h"
#include "engine/nn/optim/adamw.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "models/decoder/decoder.h"
#include "sharding/fully_shard.h"

namespace loom::bench {
namespace {

constexpr std::int64_t kSeq = 512;
constexpr std::int64_t kBatch = 4;
constexpr int kRounds = 5;
constexpr int kStepsPerRound = 2;

models::DecoderConfig decoder() {
  models::DecoderConfig config;
  config.family = models::DecoderFamily::kQwen2;
  config.vocab_size = 1536;
  config.hidden_size = 512;
  config.intermediate_size = 1408;
  config.num_hidden_layers = 8;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 4;
  config.head_dim = 64;
  config.max_position_embeddings = kSeq;
  config.qkv_bias = true;
  return config;
}

double model_flops_per_token(const models::DecoderConfig& c, std::int64_t parameters) {
  const auto weights = static_cast<double>(parameters - c.vocab_size * c.hidden_size);  // the embedding is a look-up
  const auto attention = static_cast<double>(c.num_hidden_layers * c.num_attention_heads * c.head_dim * kSeq);
  return 6.0 * weights + 6.0 * attention;
}

// One rank's model and data.
class Rank {
 public:
  Rank(bool sharded, DType compute, comm::World& world) : model_(models::build_decoder(decoder())), sharded_(sharded) {
    if (sharded) {
      sharding::FullyShardOptions options;
      options.axes = sharding::FsdpAxes::over(world, world.size());
      if (compute != DType::kF32) options.policy = {compute, DType::kF32, std::nullopt, true};
      options.reshard_after_forward = true;
      options.layout = sharding::GatherLayout::kFast;
      nn::Module& layers = *model_->find("model.layers");
      for (auto& [name, layer] : layers.children()) sharding::fully_shard(*layer, options);
      sharding::fully_shard(*model_->find("model.embed_tokens"), options);
      sharding::fully_shard(*model_->find("lm_head"), options);
      sharding::fully_shard(*model_, options);
      sharding::materialize_shards(*model_);
    } else {
      if (compute != DType::kF32) {  // an unsharded rank in bf16 is a shard group of one
        throw InvariantError("unsharded bf16 ranks are sharded over one");
      }
      nn::materialize(*model_);
    }
    nn::init_weights(*model_, 1);
    optimizer_ = std::make_unique<nn::AdamW>(model_->parameters(), nn::AdamWOptions{.lr = 1e-4});
    inputs_ = Tensor::host({kBatch, kSeq}, DType::kI32, "inputs");
    targets_ = Tensor::host({kBatch, kSeq}, DType::kI32, "targets");
    for (std::int64_t i = 0; i < kBatch * kSeq; ++i) {
      inputs_.data<std::int32_t>()[i] = static_cast<std::int32_t>(philox(7, static_cast<std::uint64_t>(i))[0] % 1536);
      targets_.data<std::int32_t>()[i] = static_cast<std::int32_t>(philox(8, static_cast<std::uint64_t>(i))[0] % 1536);
    }
  }

  double step() {
    Tensor logits = (*model_)(inputs_);
    Tensor loss = ops::cross_entropy(logits, targets_);
    logits = {};
    autograd::backward(loss);
    if (sharded_) {
      sharding::clip_grad_norm(*model_, 1.0);
    } else {
      const double norm = std::sqrt(nn::gradient_sum_of_squares(optimizer_->parameters()));
      nn::scale_gradients(optimizer_->parameters(), std::min(1.0, 1.0 / (norm + 1e-6)));
    }
    optimizer_->step();
    optimizer_->zero_grad();
    return loss.item();
  }

 private:
  std::shared_ptr<nn::Module> model_;
  const bool sharded_;
  std::unique_ptr<nn::AdamW> optimizer_;
  Tensor inputs_;
  Tensor targets_;
};

struct Measured {
  double first_loss = 0;
  double seconds_per_step = 0;  // of the fastest round, slowest rank
};

// Every rank does the same; rank 0 measures between barriers.
Measured measure(int ranks, bool sharded, DType compute) {
  Measured result;
  launch::run_ranks(ranks, {}, [&](RankContext& context, comm::World& world) {
    device::DeviceOptions options;
    options.executor = device::ExecutorKind::kInline;
    device::Device::install(context, options);
    const auto everyone = world.everyone();
    Rank rank(sharded, compute, world);
    const double first = rank.step();
    rank.step();
    std::vector<double> rounds;
    for (int round = 0; round < kRounds; ++round) {
      everyone->barrier(comm::kHostLane, "round");
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kStepsPerRound; ++i) rank.step();
      everyone->barrier(comm::kHostLane, "round");
      rounds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
                       kStepsPerRound);
    }
    if (context.rank() == 0) result = {first, *std::min_element(rounds.begin(), rounds.end())};
  });
  return result;
}

void check_losses(benchmark::State& state, const Measured& a, const Measured& b, double tolerance) {
  if (!(std::abs(a.first_loss - b.first_loss) <= tolerance)) {
    state.SkipWithError(fmt::format("first losses differ: {} and {}", a.first_loss, b.first_loss).c_str());
  }
}

void training_step(benchmark::State& state, DType compute) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const double flops = model_flops_per_token(decoder(), models::build_decoder(decoder())->parameter_count());
  for (auto _ : state) {
    const Measured alone = measure(cores, false, DType::kF32);
    const Measured sharded = measure(cores, true, compute);
    const double peak = fma_peak_flops(compute, cores);
    check_losses(state, alone, sharded, compute == DType::kF32 ? 1e-5 : 2e-2);
    const double tokens = static_cast<double>(cores) * kBatch * kSeq;
    state.counters["mfu"] = tokens * flops / sharded.seconds_per_step / peak;
    state.counters["tokens_per_s"] = tokens / sharded.seconds_per_step;
    if (compute == DType::kF32) {
      state.counters["unsharded_mfu"] = tokens * flops / alone.seconds_per_step / peak;
      state.counters["fsdp_over_unsharded"] = sharded.seconds_per_step / alone.seconds_per_step;
    }
  }
}

BENCHMARK_CAPTURE(training_step, fp32, DType::kF32)->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK_CAPTURE(training_step, bf16, DType::kBF16)->Iterations(1)->Unit(benchmark::kSecond);

}  // namespace
}  // namespace loom::bench

BENCHMARK_MAIN();
