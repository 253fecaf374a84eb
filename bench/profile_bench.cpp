// What --profile costs: time of a profiled training step over that of the same step without.
//
// Model     Llama architecture, d 256, 4 layers, sequence 128, one sequence a step and rank; sharded over 2 ranks, a
//           thread each.
// Rounds    of steps with and without, in turn in the same process; the fastest of each counts.
// Levels    level0 alone; level2 with everything on.
// Check     before anything is timed: the losses with and without are the same bits.
#include <algorithm>
#include <benchmark/benchmark.h>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "engine/cli/words/arguments.h"
#include "engine/core/rng.h"
#include "engine/launch/run_ranks.h"
#include "engine/nn/functional.h"
#include "engine/observe/profiler.h"
#include "engine/train/inputs.h"
#include "engine/train/rank_setup.h"
#include "engine/train/trainer.h"
#include "models/hub/model_hub.h"

namespace loom::bench {
namespace {

namespace fs = std::filesystem;
using train::TrainArguments;
using train::TrainSections;

constexpr int kRanks = 2;
constexpr std::int64_t kVocab = 512;
constexpr std::int64_t kCheckedSteps = 3;
constexpr int kRounds = 7;
constexpr int kStepsPerRound = 5;

fs::path folder() {
  const fs::path path = fs::temp_directory_path() / "shardloom_profile_bench";
  fs::create_directories(path);
  return path;
}

job::Job arguments_of(bool everything) {
  const fs::path at = folder();
  std::ofstream(at / "model.yaml") << "model_type: llama\nvocab_size: 512\nhidden_size: 256\nintermediate_size: 704\n"
                                      "num_hidden_layers: 4\nnum_attention_heads: 4\nnum_key_value_heads: 4\n"
                                      "max_position_embeddings: 128\nrms_norm_eps: 1.0e-6\n"
                                      "tie_word_embeddings: false\n";
  std::ofstream(at / "fsdp2.yaml")
      << "sharding_size: auto\nsub_modules_to_wrap: [model.embed_tokens, \"model.layers.{*}\", lm_head]\n";
  job::Job a;
  a.model.model_config = at / "model.yaml";
  a.data.seq_length = 128;
  a.launch.ranks = kRanks;
  a.schedule.global_batch_size = kRanks;
  a.parallel.use_torch_fsdp2 = true;
  a.parallel.fsdp2_config_path = at / "fsdp2.yaml";
  a.schedule.train_iters = a.schedule.lr_decay_iters = 1000;
  a.profile.enabled = true;
  a.profile.step_start = 0;
  a.profile.step_end = 1000;
  a.profile.save_path = at;
  if (everything) {
    a.profile.level = observe::ProfileLevel::kLevel2;
    a.profile.with_cpu = a.profile.with_stack = true;
  }
  return a;
}

data::Batch batch_of(const TrainArguments& arguments, std::span<const std::int64_t> samples) {
  const Shape shape{static_cast<std::int64_t>(samples.size()), arguments.seq_length};
  const Tensor ids = Tensor::host(shape, DType::kI32, "ids");
  const Tensor targets = Tensor::host(shape, DType::kI32, "targets");
  for (std::int64_t i = 0; i < shape.numel(); ++i) {
    const auto draw = philox(static_cast<std::uint64_t>(samples[0]), static_cast<std::uint64_t>(i));
    ids.data<std::int32_t>()[i] = static_cast<std::int32_t>(draw[0] % kVocab);
    targets.data<std::int32_t>()[i] = static_cast<std::int32_t>(draw[1] % kVocab);
  }
  return {{{"ids", ids}, {"targets", targets}}};
}

train::PretrainCallbacks callbacks() {
  train::PretrainCallbacks result;
  result.train_valid_test_datasets_provider = [](const TrainArguments& arguments) {
    return data::DataLoaders{
        .train = [&arguments](std::span<const std::int64_t> samples) { return batch_of(arguments, samples); }};
  };
  result.model_provider = [](const TrainArguments& arguments) {
    return models::ModelHub::global().build(*arguments.model_config);
  };
  result.forward_step = [](data::DataIterator& data, nn::Module& model) -> data::ForwardResult {
    const data::Batch batch = data.next();
    return {model(batch["ids"]), [targets = batch["targets"]](const nn::Value& logits) {
              return data::Loss(nn::functional::cross_entropy(logits, targets));
            }};
  };
  return result;
}

struct Measured {
  std::vector<double> plain_losses, profiled_losses;
  double plain_s = 0;  // a step
  double profiled_s = 0;
};

double round_of(train::Trainer& trainer, observe::Profiler* profiler, std::int64_t& step) {
  trainer.set_observers(profiler == nullptr ? std::vector<train::StepObserver*>{}
                                            : std::vector<train::StepObserver*>{profiler});
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kStepsPerRound; ++i, ++step) {
    trainer.step();
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kStepsPerRound;
}

Measured measure(const job::Job& arguments) {
  const train::PretrainCallbacks given = callbacks();
  const train::TrainingInputs inputs = train::read_inputs(arguments, given);
  Measured result;
  const auto with_trainer = [&](const auto& run) {
    launch::run_ranks(kRanks, {}, [&](RankContext& context, comm::World& world) {
      nn::make_rank(context, train::rank_setup(arguments));
      train::Trainer trainer(arguments, given, inputs, world);
      const std::optional<virtual_time::HardwareProfile> no_device;
      observe::Profiler profiler(
          arguments.profile, no_device,
          {.executor = arguments.launch.device_executor, .train_iters = arguments.schedule.train_iters});
      run(context.rank(), trainer, profiler);
    });
  };
  with_trainer([&](int rank, train::Trainer& trainer, observe::Profiler&) {
    for (std::int64_t step = 0; step < kCheckedSteps; ++step) {
      const double loss = trainer.step().loss;
      if (rank == 0) result.plain_losses.push_back(loss);
    }
  });
  with_trainer([&](int rank, train::Trainer& trainer, observe::Profiler& profiler) {
    std::int64_t step = 0;
    for (; step < kCheckedSteps; ++step) {
      trainer.set_observers({&profiler});
      const double loss = trainer.step().loss;
      if (rank == 0) result.profiled_losses.push_back(loss);
    }
    std::vector<double> plain, profiled;
    for (int round = 0; round < kRounds; ++round) {
      plain.push_back(round_of(trainer, nullptr, step));
      profiled.push_back(round_of(trainer, &profiler, step));
    }
    if (rank != 0) return;
    result.plain_s = *std::ranges::min_element(plain);
    result.profiled_s = *std::ranges::min_element(profiled);
  });
  return result;
}

void profiled_step(benchmark::State& state, bool everything) {
  for (auto _ : state) {
    const Measured measured = measure(arguments_of(everything));
    if (measured.plain_losses != measured.profiled_losses) {
      state.SkipWithError("the losses with and without a profile differ");
      return;
    }
    state.counters["profiled_over_plain"] = measured.profiled_s / measured.plain_s;
    state.counters["plain_ms"] = 1e3 * measured.plain_s;
  }
}

BENCHMARK_CAPTURE(profiled_step, level0, false)->Iterations(1)->Unit(benchmark::kSecond);
BENCHMARK_CAPTURE(profiled_step, everything, true)->Iterations(1)->Unit(benchmark::kSecond);

}  // namespace
}  // namespace loom::bench

BENCHMARK_MAIN();
