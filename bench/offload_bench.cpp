// What keeping state in host memory costs a training step, and what it gives back: train::Trainer::step() of the
// decoder of decoder_job.h over two ranks, with everything on the device against offload_to_cpu, --optimizer adamw_swap
// and --swap-optimizer, in turn in the same process.
//
// Counters  step_ratio: time of a step over that with everything on the device, the best round of each. peak_ratio:
//           peak of the device's memory over the same. peak_MiB, step_ms.
// Checked   before it is timed: the losses of the first three steps are the same bits.
#include <algorithm>
#include <benchmark/benchmark.h>
#include <chrono>
#include <cstring>

#include "bench/decoder_job.h"
#include "engine/launch/run_ranks.h"
#include "engine/train/rank_setup.h"

namespace loom::bench {
namespace {

constexpr int kRanks = 2;
constexpr int kRounds = 8;

struct Measured {
  std::vector<double> losses;
  double seconds = 1e300;
  double peak_bytes = 0;
};

std::filesystem::path offloading_file() {
  const std::filesystem::path file = sharding_file(DType::kF32).parent_path() / "offload.yaml";
  io::write_text(file,
                 "sharding_size: auto\nreshard_after_forward: true\noffload_to_cpu: true\npin_memory: true\n"
                 "sub_modules_to_wrap: [model.embed_tokens, \"model.layers.{*}\", lm_head]\n");
  return file;
}

Measured measure(const train::TrainSections& asked) {
  Measured result;
  const train::PretrainCallbacks given = callbacks();
  const train::TrainingInputs inputs = train::read_inputs(asked, given);
  launch::run_ranks(kRanks, {}, [&](RankContext& context, comm::World& world) {
    nn::make_rank(context, train::rank_setup(asked));
    const auto everyone = world.everyone();
    train::Trainer trainer(asked, given, inputs, world);
    Measured own;
    for (int step = 0; step < 3; ++step) own.losses.push_back(trainer.step().loss);
    for (int round = 0; round < kRounds; ++round) {
      everyone->barrier(comm::kHostLane, "round");
      const auto start = std::chrono::steady_clock::now();
      trainer.step();
      everyone->barrier(comm::kHostLane, "round");
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      own.seconds = std::min(own.seconds, seconds);
    }
    own.peak_bytes = static_cast<double>(device::Device::current().memory().stats().peak_bytes);
    if (context.rank() == 0) result = own;
  });
  return result;
}

enum class Where { kOffload, kSwapBatches, kSwapSlices };

void host_state(benchmark::State& state, Where where) {
  const train::TrainSections on_device = arguments(kRanks, true, DType::kF32);
  train::TrainSections on_host = on_device;
  if (where == Where::kOffload) on_host.parallel.fsdp2_config_path = offloading_file();
  if (where == Where::kSwapBatches) on_host.optimizer.kind = train::OptimizerKind::kAdamSwap;
  on_host.optimizer.swap_optimizer = where == Where::kSwapSlices;
  for (auto _ : state) {
    const Measured plain = measure(on_device), moved = measure(on_host);
    if (std::memcmp(plain.losses.data(), moved.losses.data(), plain.losses.size() * sizeof(double)) != 0) {
      state.SkipWithError("the losses differ");
    }
    state.counters["step_ratio"] = moved.seconds / plain.seconds;
    state.counters["peak_ratio"] = moved.peak_bytes / plain.peak_bytes;
    state.counters["step_ms"] = moved.seconds * 1e3;
    state.counters["peak_MiB"] = moved.peak_bytes / (1 << 20);
  }
}

BENCHMARK_CAPTURE(host_state, offload_to_cpu, Where::kOffload)->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK_CAPTURE(host_state, adamw_swap, Where::kSwapBatches)->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK_CAPTURE(host_state, swap_optimizer, Where::kSwapSlices)->Iterations(1)->Unit(benchmark::kSecond);

}  // namespace
}  // namespace loom::bench

BENCHMARK_MAIN();
