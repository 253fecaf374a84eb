// Promise: with --params-dtype bf16, parameters, gradients and optimizer state are bf16 on any number of ranks, with
//          every optimizer and wherever its state is; the run is saved, goes on bit for bit, and is written in bf16.
//          With LoRA the frozen base is bf16 and the adapters are fp32.
// World:   1, 2 and 4 ranks as threads; a model that learns token -> (3 token + 1) mod 8; 8 samples a step.
#include <gmock/gmock.h>
#include <map>

#include "engine/core/error.h"
#include "engine/core/rounding.h"
#include "engine/device/device.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/train/run_checkpoints.h"
#include "models/lora/lora.h"
#include "sharding/full_parameters.h"
#include "sharding/memory.h"
#include "tests/train/saved_arguments_of.h"
#include "tests/train/tiny_trainers.h"

namespace loom::train {
namespace {

using ::testing::ElementsAre;

struct RunResult {
  std::vector<double> losses;
  std::map<std::string, std::vector<float>> weights;  // whole
  std::vector<std::string> lines;                     // said by rank 0
  std::map<device::MemCategory, std::int64_t> bytes;  // of rank 0, after the last step
  std::map<std::string, DType> state_dtypes;          // of rank 0's parameters that have state
};

class StoredInBf16 : public TinyTrainers {
 protected:
  StoredInBf16() : folder(arguments.parallel.fsdp2_config_path->parent_path() / "run") {
    arguments.model.params_dtype = DType::kBF16;
    arguments.checkpoint.ckpt_format = CheckpointFormat::kTorchDcp;
    arguments.schedule.train_iters = arguments.schedule.lr_decay_iters = 6;
  }

  void keys(const std::string& more) {
    arguments.parallel.fsdp2_config_path = test::write_file(
        folder.parent_path() / "fsdp2.yaml", "sharding_size: auto\nsub_modules_to_wrap: [embed, head]\n" + more);
  }

  RunResult run(int ranks, std::int64_t last, bool saves = false) {
    arguments.launch.ranks = ranks;
    arguments.schedule.micro_batch_size = 8 / ranks;
    const TrainingInputs inputs = read_inputs(arguments, callbacks);
    RunResult result;
    launch::run_ranks(ranks, {std::chrono::seconds(60)}, [&](RankContext& context, comm::World& world) {
      nn::make_rank(context, rank_setup(arguments));
      Trainer trainer(arguments, callbacks, inputs, world);
      RunCheckpoints checkpoints(trainer, arguments, saved_arguments_of(arguments), world,
                                 [&](const std::string& line) { result.lines.push_back(line); });
      checkpoints.load();
      while (trainer.state().step < last) {
        const StepMetrics metrics = trainer.step();
        if (context.rank() == 0) result.losses.push_back(metrics.loss);
      }
      if (context.rank() == 0) look_at(trainer, result);
      if (saves) checkpoints.save();
      checkpoints.finish();
      sharding::for_each_full_parameter(trainer.model(), [&](const std::string& path, const Tensor& full) {
        if (context.rank() == 0) result.weights[path] = full.to_vector<float>();
      });
    });
    return result;
  }

  // Runs whole, and as two parts; the second has to have the bits of the first.
  void expect_goes_on(int ranks) {
    std::filesystem::remove_all(folder);
    arguments.checkpoint.load.reset();
    const RunResult whole = run(ranks, 6);
    arguments.checkpoint.save = folder;
    run(ranks, 3, true);
    arguments.checkpoint.save.reset();
    arguments.checkpoint.load = folder;
    const RunResult rest = run(ranks, 6);
    EXPECT_THAT(rest.losses, ElementsAre(whole.losses[3], whole.losses[4], whole.losses[5])) << ranks;
    EXPECT_EQ(rest.weights, whole.weights) << ranks;
    EXPECT_EQ(rest.state_dtypes, whole.state_dtypes) << ranks;
    arguments.checkpoint.load.reset();
  }

  std::map<std::string, DType> saved_dtypes() {
    arguments.launch.ranks = kRanks;
    arguments.schedule.micro_batch_size = 4;
    std::map<std::string, DType> found;
    on_each_rank([&](int, Trainer& trainer) {
      trainer.step();
      trainer.save(folder);
    });
    const io::SafetensorsFile file(folder / "model.safetensors");
    for (const io::StoredTensor& tensor : file.tensors()) found[tensor.name] = tensor.dtype;
    return found;
  }

  std::filesystem::path folder;

 private:
  static void look_at(Trainer& trainer, RunResult& result) {
    const device::MemStats stats = device::Device::current().memory().stats();
    for (const auto category : {sharding::kShard, device::MemCategory::kOptimizerState}) {
      result.bytes[category] = stats.by_category[category];
    }
    const nn::OptimizerState state = trainer.optimizer().state_dict();
    for (const auto& [path, parameter] : state.parameters) {
      for (const auto& [name, value] : parameter) {
        const auto* tensor = std::get_if<nn::LocalTensor>(&value);
        if (tensor != nullptr) result.state_dtypes[path + " " + name] = tensor->value.dtype();
      }
    }
  }
};

TEST_F(StoredInBf16, EveryNumberOfAParameterIsABf16OneAndTheLossFalls) {
  for (const int ranks : {1, 2, 4}) {
    const RunResult found = run(ranks, 6);
    EXPECT_LT(found.losses.back(), found.losses.front());
    for (const auto& [path, values] : found.weights) {
      for (const float value : values) EXPECT_EQ(value, static_cast<float>(bf16(value))) << path;
    }
    EXPECT_EQ(found.state_dtypes.size(), 8u);  // two moments of four parameters
    for (const auto& [name, dtype] : found.state_dtypes) EXPECT_EQ(dtype, DType::kBF16) << name;
  }
}

TEST_F(StoredInBf16, AShardTakesTwoBytesAnElementAndItsMomentsFour) {
  const auto block = [](std::int64_t bytes) { return round_up(bytes, std::int64_t{512}); };
  const std::int64_t elems[] = {kVocab * 4, 4, kVocab * 4, kVocab};  // embedding, norm, head, its bias
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    arguments.model.params_dtype = dtype;
    std::int64_t shards = 0;
    for (const std::int64_t count : elems) shards += block(count / kRanks * element_bytes(dtype));
    const RunResult found = run(kRanks, 1);
    EXPECT_EQ(found.bytes.at(sharding::kShard), shards);
    EXPECT_EQ(found.bytes.at(device::MemCategory::kOptimizerState), 2 * shards);
  }
}

TEST_F(StoredInBf16, TheNumberOfRanksChangesTheOrderOfSumsAlone) {
  keys("param_dtype: bf16\nreduce_dtype: fp32\n");
  const RunResult alone = run(1, 6);
  for (const int ranks : {2, 4}) {
    const RunResult sharded = run(ranks, 6);
    for (std::size_t i = 0; i < alone.losses.size(); ++i) EXPECT_NEAR(sharded.losses[i], alone.losses[i], 0.03) << i;
  }
}

TEST_F(StoredInBf16, WithoutShardingItIsTheSameModel) {
  const RunResult sharded = run(1, 6);
  arguments.parallel.use_torch_fsdp2 = false;
  arguments.parallel.fsdp2_config_path.reset();
  const RunResult plain = run(1, 6);
  EXPECT_EQ(plain.losses, sharded.losses);
  EXPECT_EQ(plain.weights, sharded.weights);
}

TEST_F(StoredInBf16, ParamDtypeBf16CastsNothingMore) {
  const RunResult plain = run(2, 6);
  keys("param_dtype: bf16\ncast_forward_inputs: false\n");
  const RunResult given = run(2, 6);
  EXPECT_EQ(given.losses, plain.losses);
  EXPECT_EQ(given.weights, plain.weights);
}

TEST_F(StoredInBf16, GoesOnBitForBitWithEveryOptimizer) {
  for (const OptimizerKind kind : {OptimizerKind::kAdam, OptimizerKind::kAdamSwap, OptimizerKind::kSgd}) {
    arguments.optimizer.kind = kind;
    for (const int ranks : {1, 2, 4}) expect_goes_on(ranks);
  }
  arguments.optimizer.kind = OptimizerKind::kAdam;
  keys("offload_to_cpu: true\npin_memory: true\n");
  expect_goes_on(2);
}

TEST_F(StoredInBf16, StateOnTheHostHasTheBitsOfTheDevice) {
  const RunResult plain = run(2, 6);
  arguments.optimizer.swap_optimizer = true;
  EXPECT_EQ(run(2, 6).weights, plain.weights);
  arguments.optimizer.swap_optimizer = false;
  arguments.optimizer.kind = OptimizerKind::kAdamSwap;
  EXPECT_EQ(run(2, 6).weights, plain.weights);
  arguments.optimizer.kind = OptimizerKind::kAdam;
  keys("offload_to_cpu: true\n");
  EXPECT_EQ(run(2, 6).weights, plain.weights);
}

TEST_F(StoredInBf16, AnFp32CheckpointIsRounded) {
  arguments.model.params_dtype = DType::kF32;
  arguments.checkpoint.save = folder;
  const RunResult exact = run(2, 3, true);
  arguments.checkpoint.save.reset();
  arguments.checkpoint.load = folder;
  arguments.model.params_dtype = DType::kBF16;
  const RunResult loaded = run(2, 3);
  for (const auto& [path, values] : exact.weights) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(loaded.weights.at(path)[i], static_cast<float>(bf16(values[i]))) << path;
    }
  }
}

TEST_F(StoredInBf16, IsWrittenAsBf16UnlessFp32IsAskedFor) {
  for (const auto& [name, dtype] : saved_dtypes()) EXPECT_EQ(dtype, DType::kBF16) << name;
  arguments.checkpoint.save_dtype = SaveDType::kFp32;
  for (const auto& [name, dtype] : saved_dtypes()) EXPECT_EQ(dtype, DType::kF32) << name;
}

TEST_F(StoredInBf16, OfLoraIsTheFrozenBaseAndAdaptersAreFp32) {
  arguments.model.lora.target_modules = {"head"};
  arguments.model.lora.r = 2;
  for (const char* more : {"", "param_dtype: bf16\nreduce_dtype: fp32\n"}) {
    keys(more);
    for (const int ranks : {1, 2, 4}) {
      const RunResult before = run(ranks, 0), after = run(ranks, 6);
      EXPECT_LT(after.losses.back(), after.losses.front());
      for (const auto& [path, values] : after.weights) {
        const bool is_adapter = path.starts_with("head.lora_");
        EXPECT_EQ(values == before.weights.at(path), !is_adapter) << path;
        const bool is_bf16 = std::ranges::all_of(values, [](float v) { return v == static_cast<float>(bf16(v)); });
        EXPECT_EQ(is_bf16, !is_adapter) << path;
      }
      EXPECT_EQ(after.state_dtypes.size(), 4u);  // two moments of A and B
      for (const auto& [name, dtype] : after.state_dtypes) EXPECT_EQ(dtype, DType::kF32) << name;
      expect_goes_on(ranks);
    }
  }
}

TEST_F(StoredInBf16, IsNotForMuon) {
  arguments.optimizer.kind = OptimizerKind::kMuon;
  EXPECT_EQ(
      test::message_of<ConfigError>([&] { run(1, 0); }),
      "Muon: parameter 'head.weight': it is bf16; Muon keeps parameters in fp32 or fp64, and param_dtype is the dtype "
      "of the gather: write --params-dtype fp32, or use --optimizer adam");
}

}  // namespace
}  // namespace loom::train
