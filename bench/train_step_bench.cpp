// A whole training step, train::Trainer::step(), of a 25 M-parameter decoder: model-FLOPs utilisation, and what
// sharding costs.
//
// Model     Qwen2 architecture, d 512, 8 layers, sequence 512, 4 sequences a step and rank; one rank a core, one
//           compute thread a rank.
// MFU       FLOPs of the model's mathematics (2 per weight and token forward, twice that backward; attention over the
//           causal half) over the FMA peak of as many cores, measured before each round as the clock of a shared
//           machine changes; the median round. Recomputation, norms, the optimizer and communication count as overhead.
// Sharding  time per token of FSDP over the ranks over that of as many unsharded ranks, run in turn in the same
//           process.
// Check     before anything is timed: the sharded and the unsharded model have the same first loss (1e-5 in fp32, 2e-2
//           in bf16).
#include <algorithm>
#include <benchmark/benchmark.h>
#include <chrono>
#include <cmath>
#include <fmt/format.h>
#include <thread>

#include "bench/decoder_job.h"
#include "bench/limits.h"
#include "engine/comm/simulated/simulated.h"
#include "engine/launch/run_ranks.h"
#include "engine/train/rank_setup.h"

namespace loom::bench {
namespace {

constexpr int kRounds = 5;
constexpr int kStepsPerRound = 2;

double model_flops_per_token(const models::DecoderConfig& c, std::int64_t parameters) {
  const auto weights = static_cast<double>(parameters - c.vocab_size * c.hidden_size);  // the embedding is a look-up
  const auto attention = static_cast<double>(c.num_hidden_layers * c.num_attention_heads * c.head_dim * kSeq);
  return 6.0 * weights + 6.0 * attention;
}

struct Measured {
  double first_loss = 0;
  double seconds_per_step = 0;  // of the fastest round, slowest rank
  double steps_per_peak = 0;    // 1 / (seconds per step * FLOP/s of the peak beside it), of the median round
};

// Every rank does the same; rank 0 measures between barriers. An unsharded rank is a job of its own.
Measured measure(int ranks, bool sharded, DType compute) {
  Measured result;
  const train::PretrainCallbacks given = callbacks();
  const train::TrainSections asked = arguments(sharded ? ranks : 1, sharded, compute);
  const train::TrainingInputs inputs = train::read_inputs(asked, given);
  launch::run_ranks(ranks, {}, [&](RankContext& context, comm::World& world) {
    nn::make_rank(context, train::rank_setup(asked));
    const auto alone = comm::make_simulated_world(0, 1);
    const auto everyone = world.everyone();
    train::Trainer trainer(asked, given, inputs, sharded ? world : *alone);
    const double first = trainer.step().loss;
    trainer.step();
    std::vector<double> rounds, of_peak;
    for (int round = 0; round < kRounds; ++round) {
      everyone->barrier(comm::kHostLane, "round");
      const double peak = context.rank() == 0 ? fma_peak_flops(compute, ranks) : 1;
      everyone->barrier(comm::kHostLane, "peak");
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kStepsPerRound; ++i) trainer.step();
      everyone->barrier(comm::kHostLane, "round");
      rounds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
                       kStepsPerRound);
      of_peak.push_back(1 / rounds.back() / peak);
    }
    std::nth_element(of_peak.begin(), of_peak.begin() + kRounds / 2, of_peak.end());
    if (context.rank() == 0) result = {first, *std::min_element(rounds.begin(), rounds.end()), of_peak[kRounds / 2]};
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
    check_losses(state, alone, sharded, compute == DType::kF32 ? 1e-5 : 2e-2);
    const double tokens = static_cast<double>(cores) * kBatch * kSeq;
    state.counters["mfu"] = tokens * flops * sharded.steps_per_peak;
    state.counters["tokens_per_s"] = tokens / sharded.seconds_per_step;
    if (compute == DType::kF32) {
      state.counters["unsharded_mfu"] = tokens * flops * alone.steps_per_peak;
      state.counters["fsdp_over_unsharded"] = sharded.seconds_per_step / alone.seconds_per_step;
    }
  }
}

BENCHMARK_CAPTURE(training_step, fp32, DType::kF32)->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK_CAPTURE(training_step, bf16, DType::kBF16)->Iterations(1)->Unit(benchmark::kSecond);

}  // namespace
}  // namespace loom::bench

BENCHMARK_MAIN();
