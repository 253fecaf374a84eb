// Promise: a run that ends and goes on from its checkpoint is the run that did not end: bit for bit at the same number
//          of ranks, within rounding at another. What it cannot go on from is an error that says what to give.
// World:   1 to 4 ranks as threads; a model that learns token -> (3 token + 1) mod 8, with dropout; checkpoints in the
//          test's folder.
#include "engine/train/run_checkpoints.h"

#include <fstream>
#include <gmock/gmock.h>
#include <mutex>

#include "engine/checkpoint/checkpoint_folder.h"
#include "engine/core/error.h"
#include "sharding/full_parameters.h"
#include "tests/support/logged.h"
#include "tests/train/saved_arguments_of.h"
#include "tests/train/tiny_trainers.h"

namespace loom::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct RunResult {
  std::vector<double> losses;
  std::vector<std::vector<float>> weights;  // rank 0's shards
  std::vector<std::string> lines;           // said by rank 0
  TrainState state;
};

class RunCheckpointsTest : public TinyTrainers {
 protected:
  RunCheckpointsTest() : folder(arguments.parallel.fsdp2_config_path->parent_path() / "run") {
    arguments.checkpoint.ckpt_format = CheckpointFormat::kTorchDcp;
    arguments.schedule.train_iters = arguments.schedule.lr_decay_iters = 6;
    arguments.optimizer.no_weight_decay_on_norms_and_biases = true;
    dropout(0.3);
  }
  void dropout(double share) {
    callbacks.model_provider = [=](const TrainArguments&) { return std::make_shared<TinyLm>(share); };
  }

  // Steps up to `last`, saving after every step of `saves`.
  RunResult run(int ranks, std::int64_t last, const std::vector<std::int64_t>& saves) {
    arguments.launch.ranks = ranks;
    arguments.schedule.micro_batch_size = ranks == 3 ? 4 : 8 / ranks;
    arguments.schedule.global_batch_size = ranks == 3 ? 12 : 8;
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
        checkpoints.step_done(metrics);
        if (std::ranges::count(saves, trainer.state().step) > 0) checkpoints.save();
      }
      checkpoints.finish();
      if (context.rank() != 0) return;
      result.state = trainer.state();
      for (const Tensor& parameter : trainer.model().parameters()) {
        result.weights.push_back(parameter.to_vector<float>());
      }
    });
    return result;
  }
  RunResult whole_run(int ranks) {
    arguments.checkpoint.save.reset();
    arguments.checkpoint.load.reset();
    return run(ranks, arguments.schedule.train_iters, {});
  }
  void save_at(int ranks, const std::vector<std::int64_t>& saves) {
    arguments.checkpoint.save = folder;
    arguments.checkpoint.load.reset();
    run(ranks, saves.back(), saves);
  }
  RunResult go_on(int ranks) {
    arguments.checkpoint.save.reset();
    arguments.checkpoint.load = folder;
    return run(ranks, arguments.schedule.train_iters, {});
  }
  std::string refusal(int ranks) {
    return test::message_of<ConfigError>([&] { go_on(ranks); });
  }

  std::filesystem::path folder;
};

TEST_F(RunCheckpointsTest, GoesOnBitForBitAtTheSameWorld) {
  for (const int ranks : {1, 2, 4}) {
    for (const bool async : {false, true}) {
      std::filesystem::remove_all(folder);
      arguments.checkpoint.async_save = async;
      const RunResult whole = whole_run(ranks);
      save_at(ranks, {2, 3});
      const RunResult rest = go_on(ranks);
      EXPECT_THAT(rest.losses, ElementsAre(whole.losses[3], whole.losses[4], whole.losses[5]));
      EXPECT_EQ(rest.weights, whole.weights);
      EXPECT_EQ(rest.state, whole.state);
      EXPECT_THAT(rest.lines, ElementsAre(fmt::format("  successfully loaded checkpoint from {} [ t 1/1, p 1/1 ] at "
                                                      "iteration 3",
                                                      folder.string())));
    }
  }
}

TEST_F(RunCheckpointsTest, EveryOptimizerGoesOnBitForBit) {
  for (const OptimizerKind optimizer : {OptimizerKind::kSgd, OptimizerKind::kMuon}) {
    arguments.optimizer.kind = optimizer;
    for (const int ranks : {1, 2, 4}) {
      std::filesystem::remove_all(folder);
      const RunResult whole = whole_run(ranks);
      save_at(ranks, {3});
      const RunResult rest = go_on(ranks);
      EXPECT_THAT(rest.losses, ElementsAre(whole.losses[3], whole.losses[4], whole.losses[5]));
      EXPECT_EQ(rest.weights, whole.weights) << ranks;
    }
  }
}

TEST_F(RunCheckpointsTest, SgdGoesOnWithItsDampening) {
  arguments.optimizer.kind = OptimizerKind::kSgd;
  arguments.optimizer.sgd_dampening = 0.25;
  const RunResult whole = whole_run(2);
  save_at(2, {3});
  const RunResult rest = go_on(2);
  EXPECT_THAT(rest.losses, ElementsAre(whole.losses[3], whole.losses[4], whole.losses[5]));
  EXPECT_EQ(rest.weights, whole.weights);
  arguments.optimizer.sgd_dampening = 0;
  EXPECT_THAT(refusal(2), HasSubstr("--sgd-dampening is 0, and 0.25 in the checkpoint"));
  arguments.schedule.use_checkpoint_opt_param_scheduler = true;
  EXPECT_EQ(go_on(2).weights, whole.weights);
}

TEST_F(RunCheckpointsTest, MuonGoesOnWithTheRateOfTheRest) {
  arguments.optimizer.kind = OptimizerKind::kMuon;
  const RunResult of_one_rate = whole_run(2);
  arguments.optimizer.muon.scalar_lr = arguments.schedule.lr / 4;
  const RunResult whole = whole_run(2);
  EXPECT_NE(whole.weights, of_one_rate.weights);
  save_at(2, {3});
  const RunResult rest = go_on(2);
  EXPECT_EQ(rest.weights, whole.weights);
  arguments.optimizer.muon.scalar_lr.reset();
  EXPECT_THAT(refusal(2), HasSubstr("--muon-scalar-lr divided by --lr is 1, and 0.25 in the checkpoint"));
  arguments.schedule.use_checkpoint_opt_param_scheduler = true;
  EXPECT_EQ(go_on(2).weights, whole.weights);
}

TEST_F(RunCheckpointsTest, AnotherOptimizersCheckpointIsRefused) {
  const std::string end = "; give the --optimizer of the checkpoint, or --no-load-optim to begin with a fresh one";
  save_at(2, {3});
  arguments.optimizer.kind = OptimizerKind::kSgd;
  EXPECT_THAT(refusal(2), HasSubstr("parameter group 0 was updated by AdamW, and this run has SGD" + end));
  arguments.optimizer.kind = OptimizerKind::kMuon;
  EXPECT_THAT(refusal(2), HasSubstr("parameter group 0 was updated by AdamW, and this run has Muon" + end));
  std::filesystem::remove_all(folder);
  save_at(2, {3});
  EXPECT_EQ(go_on(2).losses.size(), 3U);
  arguments.optimizer.muon.momentum = 0.5;
  EXPECT_THAT(refusal(2), HasSubstr("--muon-momentum is 0.5, and 0.95 in the checkpoint"));
  arguments.optimizer.muon.momentum = 0.95;
  arguments.optimizer.kind = OptimizerKind::kAdam;
  EXPECT_THAT(refusal(2), HasSubstr("parameter group 0 was updated by Muon, and this run has AdamW" + end));
  arguments.checkpoint.no_load_optim = true;
  EXPECT_EQ(go_on(2).losses.size(), 3U);
}

TEST_F(RunCheckpointsTest, GoesOnUnderAnotherNumberOfRanks) {
  const RunResult whole = whole_run(4);
  save_at(4, {3});
  for (const int ranks : {1, 2, 4}) {
    const RunResult rest = go_on(ranks);
    ASSERT_EQ(rest.losses.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(rest.losses[i], whole.losses[3 + i], 1e-6) << ranks;
  }
  arguments.schedule.override_opt_param_scheduler = true;  // counted in samples, the decay is longer there
  const RunResult three = go_on(3);                        // its batch is larger: the position is counted in samples
  EXPECT_EQ(three.state.samples_consumed, 3 * 8 + 3 * 12);
  EXPECT_EQ(three.losses.size(), 3u);
}

// Versions before this one counted each data rank's random numbers.
TEST_F(RunCheckpointsTest, GoesOnFromACheckpointWithAStateOfRandomNumbers) {
  const RunResult whole = whole_run(2);
  const TrainingInputs inputs = read_inputs(arguments, callbacks);
  launch::run_ranks(2, {std::chrono::seconds(60)}, [&](RankContext& context, comm::World& world) {
    nn::make_rank(context, rank_setup(arguments));
    Trainer trainer(arguments, callbacks, inputs, world);
    for (int step = 0; step < 3; ++step) trainer.step();
    checkpoint::State state;
    checkpoint::add_module(state, sharding::local_state_dict(trainer.saved_module()));
    checkpoint::add_optimizer(state, trainer.optimizer().state_dict());
    state.add({"iteration"}, io::PlainValue::whole(3));
    state.add({"rng_state", "seed"}, io::PlainValue::whole(static_cast<std::int64_t>(arguments.data.seed)));
    const Tensor draws = Tensor::host({1}, DType::kI64, "draws");
    *draws.data<std::int64_t>() = 48;
    state.add({"rng_state", "draws"}, nn::LocalTensor{draws, nn::ShardSpec::rows_from({2}, context.rank())});
    checkpoint::SaverOptions options;
    options.folder = folder;
    checkpoint::Saver saver(options, world.everyone(), [](const std::string&) {});
    saver.save(3, state);
    saver.finish();
  });
  const RunResult rest = go_on(2);
  EXPECT_THAT(rest.losses, ElementsAre(whole.losses[3], whole.losses[4], whole.losses[5]));
  EXPECT_EQ(rest.weights, whole.weights);
}

TEST_F(RunCheckpointsTest, SaysWhatItSavesInTheWordsOfMegatron) {
  arguments.checkpoint.save = folder;
  const RunResult saved = run(2, 2, {2});
  EXPECT_THAT(
      saved.lines,
      ElementsAre(fmt::format("saving checkpoint at iteration       2 to {} in torch_dcp format", folder.string()),
                  fmt::format("  successfully saved checkpoint from iteration       2 to {} [ t 1/1, p 1/1 ]",
                              folder.string())));
  EXPECT_EQ(test::read_file(folder / "latest_checkpointed_iteration.txt"), "2");
}

TEST_F(RunCheckpointsTest, ADamagedCheckpointIsPassedOver) {
  const RunResult whole = whole_run(2);
  for (const char* file : {"__0_0.distcp", "__1_0.distcp", ".metadata"}) {
    for (const bool truncate : {false, true}) {
      std::filesystem::remove_all(folder);
      save_at(2, {2, 4});
      const auto path = folder / "iter_0000004" / file;
      std::string bytes = test::read_file(path);
      const std::size_t middle = bytes.size() / 2;
      for (std::size_t i = 0; i < 200; ++i) bytes[middle + i] ^= 1;  // more than what fills up before a content
      if (truncate) bytes.resize(middle);
      test::write_file(path, bytes);
      const RunResult rest = go_on(2);
      EXPECT_EQ(rest.losses.size(), 4u) << file;
      EXPECT_EQ(rest.weights, whole.weights) << file;
    }
  }
}

TEST_F(RunCheckpointsTest, WhereEveryCheckpointIsDamagedTheRunEnds) {
  save_at(2, {2});
  const auto path = folder / "iter_0000002" / "__1_0.distcp";
  std::string bytes = test::read_file(path);
  for (std::size_t i = 0; i < 200; ++i) bytes[bytes.size() / 2 + i] ^= 1;
  test::write_file(path, bytes);
  EXPECT_THAT(refusal(2), HasSubstr("no whole checkpoint is in " + folder.string()));
}

TEST_F(RunCheckpointsTest, FinetuneTakesTheWeightsAlone) {
  save_at(2, {3});
  arguments.checkpoint.finetune = true;
  const RunResult tuned = go_on(2);
  EXPECT_EQ(tuned.losses.size(), 6u);
  EXPECT_EQ(tuned.state.samples_consumed, 48);
}

TEST_F(RunCheckpointsTest, AReleaseIsTheWeightsAlone) {
  save_at(2, {3});
  std::filesystem::rename(folder / "iter_0000003", folder / "release");
  std::filesystem::remove(folder / "release" / "shardloom_manifest.json");
  test::write_file(folder / "latest_checkpointed_iteration.txt", "release");
  EXPECT_EQ(go_on(2).losses.size(), 6u);
}

TEST_F(RunCheckpointsTest, KeepsWhatSpikesAreMeasuredBy) {
  arguments.checkpoint.save = folder;
  const TrainingInputs inputs = read_inputs(arguments, callbacks);
  const auto with_watch = [&](const std::function<void(RunCheckpoints&, log::SpikeWatch&, Trainer&)>& use) {
    launch::run_ranks(kRanks, {std::chrono::seconds(60)}, [&](RankContext& context, comm::World& world) {
      nn::make_rank(context, rank_setup(arguments));
      Trainer trainer(arguments, callbacks, inputs, world);
      RunCheckpoints checkpoints(trainer, arguments, saved_arguments_of(arguments), world, [](const std::string&) {});
      log::SpikeWatch spikes(true, true);
      use(checkpoints, spikes, trainer);
    });
  };
  const log::SpikeStates seen{{40, 2.5}, {40, 1.25}};
  with_watch([&](RunCheckpoints& checkpoints, log::SpikeWatch& spikes, Trainer& trainer) {
    checkpoints.keep(spikes);
    spikes.set_state(seen);
    trainer.step();
    checkpoints.save();
  });
  arguments.checkpoint.load = folder;
  with_watch([&](RunCheckpoints& checkpoints, log::SpikeWatch& spikes, Trainer&) {
    checkpoints.load();
    checkpoints.keep(spikes);
    EXPECT_EQ(spikes.state(), seen);
  });
}

TEST_F(RunCheckpointsTest, WithoutOptimizerStateItSaysWhatToGive) {
  arguments.checkpoint.no_save_optim = true;
  save_at(2, {3});
  EXPECT_THAT(refusal(2), HasSubstr("the checkpoint has no optimizer state; give --no-load-optim"));
  arguments.checkpoint.no_load_optim = true;
  EXPECT_EQ(go_on(2).losses.size(), 3u);
}

TEST_F(RunCheckpointsTest, AChangedScheduleIsAnErrorUnlessAFlagSaysWhatHolds) {
  save_at(2, {3});
  arguments.schedule.lr = 0.2;
  EXPECT_THAT(refusal(2), HasSubstr("--lr"));
  arguments.schedule.override_opt_param_scheduler = true;
  EXPECT_EQ(go_on(2).losses.size(), 3u);
}

TEST_F(RunCheckpointsTest, AChangedOptimizerIsAnErrorUnlessAFlagSaysWhatHolds) {
  save_at(2, {3});
  arguments.optimizer.adam_beta2 = 0.5;
  EXPECT_THAT(refusal(2), HasSubstr("--adam-beta2 is 0.5, and 0.999 in the checkpoint"));
  arguments.schedule.use_checkpoint_opt_param_scheduler = true;
  const RunResult kept = go_on(2);
  arguments.schedule.use_checkpoint_opt_param_scheduler = false;
  arguments.optimizer.adam_beta2 = 0.999;
  EXPECT_EQ(go_on(2).weights, kept.weights);
}

TEST_F(RunCheckpointsTest, OtherFlagsOfTheComputationAreNamedWithBothValues) {
  save_at(2, {3});
  arguments.optimizer.clip_grad = 0.5;
  const test::Logged logged;
  go_on(2);
  EXPECT_EQ(logged.text(), "warning: the run goes on with other flags: --clip-grad is 0.5 (was 1)\n");
}

// Each with its own type, whatever word a message has for it.
TEST_F(RunCheckpointsTest, ArgumentsAreSavedWithTheirTypes) {
  arguments.schedule.lr = 1;
  arguments.data.split = "1";
  arguments.model.freeze = {"none"};
  arguments.schedule.iterations_to_skip = {5};
  arguments.optimizer.overlap_cpu_optimizer = false;
  const auto saved = [&](const std::string& name) {
    for (const SavedArgument& argument : saved_arguments_of(arguments)) {
      if (name_in_files(argument.flag) == name) return argument.value;
    }
    ADD_FAILURE() << name;
    return io::PlainValue();
  };
  using io::PlainValue;
  EXPECT_EQ(saved("lr"), PlainValue::real(1));
  EXPECT_EQ(saved("global_batch_size"), PlainValue::whole(8));
  EXPECT_EQ(saved("split"), PlainValue::text("1"));
  EXPECT_EQ(saved("stage"), PlainValue());
  EXPECT_EQ(saved("freeze"), PlainValue::list({PlainValue::text("none")}));
  EXPECT_EQ(saved("iterations_to_skip"), PlainValue::list({PlainValue::whole(5)}));
  EXPECT_EQ(saved("fp16"), PlainValue::boolean(false));
  EXPECT_EQ(saved("use_torch_fsdp2"), PlainValue::boolean(true));
  EXPECT_EQ(saved("overlap_cpu_optimizer_d2h_h2d"), PlainValue::boolean(false));
  EXPECT_EQ(saved("loss_scale"), PlainValue());
}

// As they were saved before: None for False, a whole number for 1.0, one text for a list.
TEST_F(RunCheckpointsTest, ArgumentsOfAnEarlierCheckpointMeanWhatTheyMeant) {
  using io::PlainValue;
  const PlainValue list = PlainValue::list({PlainValue::text("a"), PlainValue::text("b")});
  for (const auto& [before, now] :
       {std::pair(PlainValue(), PlainValue::boolean(false)),
        std::pair(PlainValue::boolean(true), PlainValue::boolean(true)),
        std::pair(PlainValue::whole(1), PlainValue::real(1)),
        std::pair(PlainValue::text("false"), PlainValue::boolean(false)), std::pair(PlainValue::text("a b"), list),
        std::pair(PlainValue::whole(5), PlainValue::list({PlainValue::whole(5)})),
        std::pair(PlainValue::text(""), PlainValue()), std::pair(PlainValue::whole(1), PlainValue::text("1"))}) {
    EXPECT_TRUE(is_same_argument(before, now)) << before.repr() << " " << now.repr();
  }
  EXPECT_FALSE(is_same_argument(PlainValue(), PlainValue::boolean(true)));
  EXPECT_FALSE(is_same_argument(PlainValue::whole(2), PlainValue::real(1)));
  EXPECT_FALSE(is_same_argument(PlainValue::text("a c"), list));
  EXPECT_FALSE(is_same_argument(PlainValue::text("true"), PlainValue::boolean(false)));
}

TEST_F(RunCheckpointsTest, AnotherSeedIsAnErrorUnlessTheNumbersAreNotLoaded) {
  save_at(2, {3});
  arguments.data.seed = 99;
  EXPECT_THAT(refusal(2), HasSubstr("--seed is 99, but the run that is to go on was started with 1234"));
  arguments.checkpoint.no_load_rng = true;
  EXPECT_EQ(go_on(2).losses.size(), 3u);
}

TEST_F(RunCheckpointsTest, AFolderWithoutCheckpointsIsABeginningUnlessItMayNotBe) {
  arguments.checkpoint.load = folder;
  EXPECT_THAT(go_on(2).lines, ElementsAre(HasSubstr("WARNING: could not find the metadata file"),
                                          "    will not load any checkpoints and will start from random"));
  arguments.checkpoint.exit_on_missing_checkpoint = true;
  EXPECT_THAT(refusal(2), HasSubstr("--exit-on-missing-checkpoint is given"));
}

class OtherLm final : public nn::Module {
 public:
  OtherLm()
      : embed_(register_module("embed", std::make_shared<nn::Embedding>(kVocab, 6, 0.5))),
        last_(register_module("last", std::make_shared<nn::Linear>(6, kVocab, false, 0.5))),
        head_(register_module("head", std::make_shared<nn::Linear>(6, kVocab, true, 0.5))) {}
  std::string_view type_name() const override { return "OtherLm"; }

 protected:
  nn::Value forward(const nn::Args& args) override { return head_(embed_(args.tensor(0))); }

 private:
  nn::Child<nn::Embedding> embed_;
  nn::Child<nn::Linear> last_;
  nn::Child<nn::Linear> head_;
};

TEST_F(RunCheckpointsTest, NamesThatDoNotFitAreAllInOneError) {
  save_at(2, {3});
  callbacks.model_provider = [](const TrainArguments&) { return std::make_shared<OtherLm>(); };
  EXPECT_EQ(refusal(2),
            fmt::format("{}/iter_0000003: the model does not fit the checkpoint: 1 missing in the checkpoint: "
                        "model.last.weight [8, 6]; 1 unknown here: model.norm.weight; 2 of another shape: "
                        "model.embed.weight is [8, 4] there and [8, 6] here, model.head.weight is [8, 4] there and "
                        "[8, 6] here; the nearest to model.last.weight is model.norm.weight; load it with the flags "
                        "and the model it was saved with, or allow the difference: --dist-ckpt-strictness "
                        "assume_ok_unexpected or log_all",
                        folder.string()));
}

TEST_F(RunCheckpointsTest, OnlyTheNewestStay) {
  arguments.checkpoint.keep_last = 2;
  arguments.checkpoint.save = folder;
  run(2, 5, {1, 2, 3, 4, 5});
  EXPECT_THAT(checkpoint::CheckpointFolder(folder).iterations(), ElementsAre(5, 4));
}

}  // namespace
}  // namespace loom::train
