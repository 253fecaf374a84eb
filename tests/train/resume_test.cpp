// Promise: a trainer that is given another one's weights, optimizer state and train state goes on as that one would
//          have, bit for bit; its position in the data is that value and nothing else.
// World:   2 ranks as threads; a model that learns token -> (3 token + 1) mod 8; 2 micro-batches a step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <mutex>
#include <set>

#include "engine/core/error.h"
#include "sharding/full_parameters.h"
#include "tests/train/tiny_trainers.h"

namespace loom::train {
namespace {

using ::testing::ElementsAre;

using ResumedRun = TinyTrainers;

struct Steps {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<std::vector<float>> weights;

  bool operator==(const Steps&) const = default;

  void step(Trainer& trainer) {
    const StepMetrics metrics = trainer.step();
    losses.push_back(metrics.loss);
    norms.push_back(metrics.grad_norm);
  }
  void take_weights(Trainer& trainer) {
    for (const Tensor& parameter : trainer.model().parameters()) weights.push_back(parameter.to_vector<float>());
  }
};

struct Saved {
  nn::StateDict model;
  nn::OptimizerState optimizer;
  TrainState state;
};

TEST_F(ResumedRun, TwoAndTwoStepsAreFourSteps) {
  for (const auto& [no_decay, optimizer] : {std::pair{false, OptimizerKind::kAdam},
                                            {true, OptimizerKind::kAdam},
                                            {true, OptimizerKind::kSgd},
                                            {false, OptimizerKind::kMuon},
                                            {true, OptimizerKind::kMuon}}) {
    arguments.optimizer.no_weight_decay_on_norms_and_biases = no_decay;
    arguments.optimizer.kind = optimizer;
    callbacks.model_provider = [dropout = no_decay ? 0.3 : 0.0](const TrainArguments&) {
      return std::make_shared<TinyLm>(dropout);
    };
    std::vector<Steps> whole(kRanks), parts(kRanks);
    std::vector<Saved> saved(kRanks);
    on_each_rank([&](int rank, Trainer& trainer) {
      Steps& run = whole[static_cast<std::size_t>(rank)];
      for (int step = 0; step < 4; ++step) run.step(trainer);
      run.take_weights(trainer);
    });
    on_each_rank([&](int rank, Trainer& trainer) {
      for (int step = 0; step < 2; ++step) parts[static_cast<std::size_t>(rank)].step(trainer);
      saved[static_cast<std::size_t>(rank)] = {nn::host_copies(sharding::local_state_dict(trainer.sharded_module())),
                                               nn::host_copies(trainer.optimizer().state_dict()), trainer.state()};
    });
    on_each_rank([&](int rank, Trainer& trainer) {
      const Saved& own = saved[static_cast<std::size_t>(rank)];
      nn::load_state_dict(trainer.sharded_module(), own.model);
      trainer.optimizer().load_state_dict(own.optimizer);
      trainer.set_state(own.state);
      Steps& run = parts[static_cast<std::size_t>(rank)];
      for (int step = 2; step < 4; ++step) run.step(trainer);
      run.take_weights(trainer);
    });
    EXPECT_NE(whole[0].losses[2], whole[0].losses[3]);
    EXPECT_EQ(parts, whole);
  }
}

TEST_F(ResumedRun, TheStateSaysWhatTheNextStepReads) {
  std::mutex mutex;
  std::set<std::int64_t> read;
  callbacks.train_valid_test_datasets_provider = [&](const TrainArguments&) {
    return data::DataLoaders{.train = [&](std::span<const std::int64_t> samples) {
      const std::lock_guard lock(mutex);
      read.insert(samples.begin(), samples.end());
      return batch_of(samples);
    }};
  };
  on_each_rank([&](int, Trainer& trainer) {
    EXPECT_EQ(trainer.state(), (TrainState{.step = 0, .samples_consumed = 0, .seed = arguments.data.seed}));
    trainer.set_state({.step = 1, .samples_consumed = 100, .seed = arguments.data.seed});
    EXPECT_EQ(trainer.step().step, 2);
    EXPECT_EQ(trainer.state(),
              (TrainState{.step = 2, .samples_consumed = 108, .seed = arguments.data.seed, .schedule_samples = 8}));
  });
  EXPECT_THAT(read, ElementsAre(100, 101, 102, 103, 104, 105, 106, 107));
}

TEST_F(ResumedRun, EvaluationDropsNothingAndTrainingGoesOnDropping) {
  arguments.schedule.eval_iters = 1;
  std::map<double, std::vector<double>> evaluated;
  for (const double dropout : {0.0, 0.5}) {
    callbacks.model_provider = [=](const TrainArguments&) { return std::make_shared<TinyLm>(dropout); };
    on_each_rank([&](int rank, Trainer& trainer) {
      const double loss = trainer.evaluate(batch_of).value().loss;
      EXPECT_EQ(trainer.evaluate(batch_of).value().loss, loss);
      trainer.step();
      if (rank == 0) evaluated[dropout].push_back(loss);
    });
  }
  EXPECT_EQ(evaluated[0.5], evaluated[0.0]);
}

TEST_F(ResumedRun, EvaluationBeginsAtSampleZeroAndDoesNotMoveTheState) {
  arguments.schedule.eval_iters = 2;
  on_each_rank([&](int, Trainer& trainer) {
    std::set<std::int64_t> read;
    const data::DataLoader loader = [&](std::span<const std::int64_t> samples) {
      read.insert(samples.begin(), samples.end());
      return batch_of(samples);
    };
    trainer.set_state({.step = 1, .samples_consumed = 100, .seed = arguments.data.seed});
    const double first = trainer.evaluate(loader).value().loss;
    EXPECT_EQ(read.size(), 8u);  // half of two batches of 8
    EXPECT_LT(*read.rbegin(), 16);
    EXPECT_EQ(trainer.evaluate(loader).value().loss, first);
    EXPECT_EQ(trainer.state().samples_consumed, 100);
  });
}

TEST_F(ResumedRun, RefusesAStateOfAnotherJob) {
  on_each_rank([&](int, Trainer& trainer) {
    EXPECT_EQ(test::message_of<ConfigError>([&] { trainer.set_state({.step = 1, .samples_consumed = 8, .seed = 5}); }),
              "--seed is 1234, but the run that is to go on was started with 5; use --seed 5");
    EXPECT_EQ(
        test::message_of<ConfigError>([&] { trainer.set_state({.step = -1, .samples_consumed = 8, .seed = 1234}); }),
        "the train state is at step -1 and sample 8; neither can be negative");
    EXPECT_EQ(test::message_of<ConfigError>(
                  [&] { trainer.set_state({.step = 1, .samples_consumed = 8, .seed = 1234, .schedule_samples = 16}); }),
              "the train state is at sample 8, of which 0 were skipped and 16 moved the schedules; both are from 0 to "
              "the first");
  });
}

TEST_F(ResumedRun, NormsAndBiasesAreAGroupWhereThatIsAsked) {
  arguments.optimizer.no_weight_decay_on_norms_and_biases = true;
  on_each_rank([&](int, Trainer& trainer) {
    const nn::ParameterGroups& groups = trainer.optimizer().groups();
    ASSERT_EQ(groups.size(), 2u);
    EXPECT_EQ(groups[0].parameters.size(), 2u);
    EXPECT_EQ(groups[0].weight_decay, arguments.schedule.weight_decay);
    EXPECT_EQ(groups[1].parameters.size(), 2u);
    EXPECT_EQ(groups[1].weight_decay, 0);
  });
}

TEST_F(ResumedRun, WeightDecayFollowsItsScheduleWhereAGroupDecays) {
  arguments.optimizer.no_weight_decay_on_norms_and_biases = true;
  arguments.schedule.weight_decay_incr_style = WeightDecayIncrStyle::kLinear;
  arguments.schedule.start_weight_decay = 0;
  arguments.schedule.end_weight_decay = 0.4;
  on_each_rank([&](int, Trainer& trainer) {
    const nn::ParameterGroups& groups = trainer.optimizer().groups();
    for (const double expected : {0.0, 0.1, 0.2, 0.3}) {  // over 4 steps
      const StepMetrics metrics = trainer.step();
      EXPECT_EQ(groups[0].lr, metrics.lr);
      EXPECT_DOUBLE_EQ(groups[0].weight_decay.value(), expected);
      EXPECT_EQ(groups[1].weight_decay, 0);
    }
  });
}

TEST_F(ResumedRun, TheScheduleGoesOnWhereTheCheckpointsStood) {
  arguments.schedule.global_batch_size = 8;
  on_each_rank([&](int, Trainer& trainer) {
    trainer.step();
    const ScheduleState saved = trainer.schedule_state();
    EXPECT_EQ(saved.num_steps, 8);
    EXPECT_EQ(saved.lr_decay_steps, 32);
    trainer.set_state({.step = 0, .samples_consumed = 24, .seed = arguments.data.seed});
    ScheduleState later = saved;
    later.num_steps = 24;
    trainer.load_schedule(later);
    EXPECT_EQ(trainer.state().schedule_samples, 24);
    EXPECT_DOUBLE_EQ(trainer.step().lr, 0.1 / 4);
    later.max_lr = 1;
    EXPECT_THAT(test::message_of<ConfigError>([&] { trainer.load_schedule(later); }),
                ::testing::HasSubstr("--lr is 1 in the checkpoint and 0.1 here; "));
    EXPECT_EQ(trainer.schedule_state().max_lr, 0.1);
  });
}

TEST_F(ResumedRun, TheCheckpointsScheduleHoldsWhereThatIsAsked) {
  arguments.schedule.use_checkpoint_opt_param_scheduler = true;
  on_each_rank([&](int, Trainer& trainer) {
    ScheduleState saved = trainer.schedule_state();
    saved.max_lr = 1;
    saved.lr_decay_style = "constant";
    trainer.load_schedule(saved);
    EXPECT_EQ(trainer.step().lr, 1);
  });
}

TEST_F(ResumedRun, AForwardStepGetsOneMicroBatch) {
  callbacks.forward_step = [](data::DataIterator& data, nn::Module& model) {
    data.next();
    return forward_step(data, model);
  };
  EXPECT_EQ(test::message_of<ConfigError>([&] { on_each_rank([](int, Trainer& trainer) { trainer.step(); }); }),
            "forward_step took a second batch; it gets one micro-batch for each call");
}

}  // namespace
}  // namespace loom::train
