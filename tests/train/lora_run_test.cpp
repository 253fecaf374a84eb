// Promise: a run with adapters trains and saves these alone, beside a base that stays bit for bit what it was; its
//          checkpoints go on bit for bit, and refuse a run of another form; frozen modules stay as they are.
// World:   1, 2 and 4 ranks as threads; a model that learns token -> (3 token + 1) mod 8, with an adapter at its head.
#include <gmock/gmock.h>
#include <map>

#include "engine/checkpoint/loader.h"
#include "engine/core/error.h"
#include "engine/formats/dcp/dcp_folder.h"
#include "engine/train/run_checkpoints.h"
#include "models/lora/adapter_folder.h"
#include "models/lora/lora.h"
#include "sharding/full_parameters.h"
#include "tests/train/saved_arguments_of.h"
#include "tests/train/tiny_trainers.h"

namespace loom::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using Values = std::map<std::string, std::vector<float>>;

struct RunResult {
  std::vector<double> losses;
  Values weights;  // whole
};

class LoraRunTest : public TinyTrainers {
 protected:
  LoraRunTest() : folder(arguments.parallel.fsdp2_config_path->parent_path() / "run") {
    arguments.checkpoint.ckpt_format = CheckpointFormat::kTorchDcp;
    arguments.schedule.train_iters = arguments.schedule.lr_decay_iters = 6;
    arguments.model.lora.target_modules = {"head"};
    arguments.model.lora.r = 2;
    arguments.model.lora.dropout = 0.2;
  }

  RunResult run(int ranks, std::int64_t last, bool saves = false) {
    arguments.launch.ranks = ranks;
    arguments.schedule.micro_batch_size = 8 / ranks;
    const TrainingInputs inputs = read_inputs(arguments, callbacks);
    RunResult result;
    launch::run_ranks(ranks, {std::chrono::seconds(60)}, [&](RankContext& context, comm::World& world) {
      nn::make_rank(context, rank_setup(arguments));
      Trainer trainer(arguments, callbacks, inputs, world);
      RunCheckpoints checkpoints(trainer, arguments, saved_arguments_of(arguments), world, [](const std::string&) {});
      checkpoints.load();
      while (trainer.state().step < last) {
        const StepMetrics metrics = trainer.step();
        if (context.rank() == 0) result.losses.push_back(metrics.loss);
      }
      if (saves) checkpoints.save();
      checkpoints.finish();
      Values own;
      sharding::for_each_full_parameter(
          trainer.model(), [&](const std::string& path, const Tensor& full) { own[path] = full.to_vector<float>(); });
      if (context.rank() == 0) result.weights = std::move(own);
    });
    return result;
  }
  std::string refusal() {
    return test::message_of<ConfigError>([&] { run(2, 6); });
  }

  std::filesystem::path folder;
};

TEST_F(LoraRunTest, TrainsTheAdapterAndNothingElse) {
  arguments.model.lora.dropout = 0.0;  // every step has the same eight samples: without its noise the loss falls
  const Values before = run(2, 0).weights;
  const RunResult after = run(2, 6);
  for (const auto& [path, values] : after.weights) {
    EXPECT_EQ(values == before.at(path), !path.starts_with("head.lora_")) << path;
  }
  EXPECT_LT(after.losses.back(), after.losses.front());
}

TEST_F(LoraRunTest, ShardedAndUnshardedTrainingGiveTheSameAdapter) {
  const Values alone = run(1, 6).weights;
  for (const int ranks : {2, 4}) {
    const Values sharded = run(ranks, 6).weights;
    for (const auto& [path, values] : alone) {
      for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(sharded.at(path)[i], values[i], 2e-5) << path;
    }
  }
}

TEST_F(LoraRunTest, ItsCheckpointsHoldAdaptersAlone) {
  arguments.checkpoint.save = folder;
  run(2, 3, true);
  const io::DcpFolder checkpoint(folder / "iter_0000003");
  std::vector<std::string> weights;
  std::vector<std::string> states;
  for (const io::DcpItem& item : checkpoint.metadata().items) {
    if (item.name.starts_with("model.")) weights.push_back(item.name);
    if (item.name.starts_with("optimizer.state.")) states.push_back(item.name);
  }
  EXPECT_THAT(weights, ::testing::UnorderedElementsAre("model.head.lora_A.weight", "model.head.lora_B.weight"));
  EXPECT_THAT(states, SizeIs(6));  // exp_avg, exp_avg_sq and step of both
  const auto config = checkpoint::read_value(checkpoint, "lora.adapter_config");
  ASSERT_TRUE(config);
  EXPECT_THAT(config->as_text(), HasSubstr("\"r\": 2"));
  EXPECT_EQ(checkpoint::read_value(checkpoint, "lora.base_digest")->as_text(),
            fmt::format("drawn from seed {}", arguments.data.seed));
}

TEST_F(LoraRunTest, GoesOnBitForBit) {
  for (const int ranks : {1, 2, 4}) {
    std::filesystem::remove_all(folder);
    arguments.checkpoint.save.reset();
    arguments.checkpoint.load.reset();
    const RunResult whole = run(ranks, 6);
    arguments.checkpoint.save = folder;
    run(ranks, 3, true);
    arguments.checkpoint.save.reset();
    arguments.checkpoint.load = folder;
    const RunResult rest = run(ranks, 6);
    EXPECT_THAT(rest.losses, ElementsAre(whole.losses[3], whole.losses[4], whole.losses[5]));
    EXPECT_EQ(rest.weights, whole.weights);
  }
}

TEST_F(LoraRunTest, RefusesARunOfAnotherForm) {
  arguments.checkpoint.save = folder;
  run(2, 3, true);
  arguments.checkpoint.save.reset();
  arguments.checkpoint.load = folder;
  arguments.model.lora.alpha = 7;
  EXPECT_THAT(refusal(), HasSubstr("lora_alpha of its adapters is 32, and 7 in this run"));
  arguments.model.lora = {};
  EXPECT_THAT(refusal(), HasSubstr("the checkpoint holds LoRA adapters alone, and this run has none"));
  std::filesystem::remove_all(folder);
  arguments.checkpoint.load.reset();
  arguments.checkpoint.save = folder;
  run(2, 3, true);
  arguments.checkpoint.save.reset();
  arguments.checkpoint.load = folder;
  arguments.model.lora.target_modules = {"head"};
  EXPECT_THAT(refusal(), HasSubstr("the checkpoint holds a whole model and no adapters; make a folder of it"));
}

TEST_F(LoraRunTest, SavesPeftsFolderAndStartsFromIt) {
  arguments.checkpoint.ckpt_format = CheckpointFormat::kHf;
  Values saved;
  on_each_rank([&](int rank, Trainer& trainer) {
    for (int i = 0; i < 3; ++i) trainer.step();
    EXPECT_EQ(trainer.save(folder), std::nullopt);
    Values own;
    sharding::for_each_full_parameter(
        trainer.model(), [&](const std::string& path, const Tensor& full) { own[path] = full.to_vector<float>(); });
    if (rank == 0) saved = own;
  });
  EXPECT_FALSE(std::filesystem::exists(folder / "model.safetensors"));
  arguments.model.lora = {};
  arguments.model.lora.load = folder;
  EXPECT_EQ(run(2, 0).weights, saved);
  arguments.model.lora.r = 5;
  EXPECT_THAT(refusal(), HasSubstr("its configuration has 2, and --lora-r is 5"));
}

TEST_F(LoraRunTest, TheYamlBlockAsksForTheSame) {
  const Values of_flags = run(2, 6).weights;
  arguments.model.lora = {};
  arguments.parallel.fsdp2_config_path = test::write_file(
      folder.parent_path() / "lora.yaml",
      "sharding_size: auto\nsub_modules_to_wrap: [embed, head]\nlora:\n  enable: true\n  rank: 2\n  alpha: 32\n"
      "  dropout: 0.2\n  target_modules: [head]\n");
  EXPECT_EQ(run(2, 6).weights, of_flags);
  arguments.model.lora.target_modules = {"head"};
  EXPECT_THAT(refusal(), HasSubstr("lora.yaml:3:1: lora is enabled, and --lora-target-modules asks for adapters too"));
}

TEST_F(LoraRunTest, FrozenModulesStayAsTheyAre) {
  arguments.model.lora = {};
  arguments.model.freeze = {"embed"};
  arguments.parallel.fsdp2_config_path =
      test::write_file(folder.parent_path() / "freeze.yaml",
                       "sharding_size: auto\nsub_modules_to_wrap: [embed, head]\nfreeze: [norm]\n");
  const Values before = run(2, 0).weights;
  for (const auto& [path, values] : run(2, 3).weights) {
    EXPECT_EQ(values == before.at(path), path == "embed.weight" || path == "norm.weight") << path;
  }
  arguments.model.freeze = {"embed", "head"};
  EXPECT_THAT(refusal(), HasSubstr("the frozen modules leave nothing of TinyLm to train; freeze less"));
  arguments.model.freeze = {"hed"};
  EXPECT_THAT(refusal(), HasSubstr("--freeze"));
}

}  // namespace
}  // namespace loom::train
