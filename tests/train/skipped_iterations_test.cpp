// Promise: an iteration of --iterations-to-skip consumes its batch and leaves everything else where it was; a run goes
//          on behind it as if that batch were not in the data.
// World:   2 ranks as threads, batches of 8 samples.
#include <array>
#include <gmock/gmock.h>
#include <mutex>
#include <set>

#include "engine/train/loop.h"
#include "tests/train/tiny_trainers.h"

namespace loom::train {
namespace {

using ::testing::ElementsAre;
using Weights = std::vector<std::vector<float>>;

Weights weights_of(Trainer& trainer) {
  Weights weights;
  for (const Tensor& parameter : trainer.model().parameters()) weights.push_back(parameter.to_vector<float>());
  return weights;
}

using SkippedIterations = TinyTrainers;

TEST_F(SkippedIterations, ConsumeTheirBatchAndChangeNothingElse) {
  arguments.schedule.iterations_to_skip = {3};
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
    for (int step = 0; step < 2; ++step) {
      trainer.skip_iterations();
      trainer.step();
    }
    const Weights after_two = weights_of(trainer);
    const TrainState state = trainer.state();
    trainer.skip_iterations();
    EXPECT_EQ(weights_of(trainer), after_two);
    EXPECT_EQ(
        trainer.state(),
        (TrainState{
            .step = 3, .samples_consumed = 24, .seed = state.seed, .samples_skipped = 8, .schedule_samples = 16}));
    const StepMetrics fourth = trainer.step();
    EXPECT_EQ(fourth.step, 4);
    EXPECT_EQ(fourth.samples_consumed, 32);
    EXPECT_EQ(fourth.samples_skipped, 8);
    EXPECT_DOUBLE_EQ(fourth.lr, 0.1 * 2 / 4);  // linear to 0 over 4 updates, of which two were made
    EXPECT_NE(weights_of(trainer), after_two);
  });
  EXPECT_EQ(read.size(), 24u);
  EXPECT_FALSE(read.contains(16) || read.contains(23)) << "the batch of iteration 3";
  EXPECT_TRUE(read.contains(24) && read.contains(31)) << "the batch of iteration 4";
}

TEST_F(SkippedIterations, AreAsIfTheirBatchWereNotInTheData) {
  std::vector<Weights> with_skip(kRanks), without_batch(kRanks);
  arguments.schedule.iterations_to_skip = {2};
  on_each_rank([&](int rank, Trainer& trainer) {
    EXPECT_EQ(run_steps(trainer, arguments.schedule, {}, {}, {}).reason, EndReason::kLastStep);
    with_skip[static_cast<std::size_t>(rank)] = weights_of(trainer);
  });
  arguments.schedule.iterations_to_skip = {};
  callbacks.train_valid_test_datasets_provider = [](const TrainArguments&) {
    return data::DataLoaders{.train = [](std::span<const std::int64_t> samples) {
      std::vector<std::int64_t> moved(samples.begin(), samples.end());
      for (std::int64_t& sample : moved) sample += sample < 8 ? 0 : 8;
      return batch_of(moved);
    }};
  };
  on_each_rank([&](int rank, Trainer& trainer) {
    for (int step = 0; step < 3; ++step) trainer.step();
    without_batch[static_cast<std::size_t>(rank)] = weights_of(trainer);
  });
  EXPECT_EQ(with_skip, without_batch);
}

// Iteration 3 drops what it drops in a run that begins with its samples.
TEST_F(SkippedIterations, DoNotChangeWhatLaterOnesDrop) {
  callbacks.model_provider = [](const TrainArguments&) { return std::make_shared<TinyLm>(0.3); };
  arguments.schedule.iterations_to_skip = {1, 2};
  std::array<double, kRanks> losses{};
  on_each_rank([&](int rank, Trainer& trainer) {
    trainer.skip_iterations();
    losses[static_cast<std::size_t>(rank)] = trainer.step().loss;
  });
  arguments.schedule.iterations_to_skip = {};
  on_each_rank([&](int rank, Trainer& trainer) {
    trainer.set_state({.step = 2, .samples_consumed = 16, .seed = arguments.data.seed});
    EXPECT_EQ(trainer.step().loss, losses[static_cast<std::size_t>(rank)]);
  });
}

struct Told final : StepObserver {
  void begin_step(std::int64_t step) override { begun.push_back(step); }
  void skipped(std::int64_t step) override { passed_over.push_back(step); }
  void step_done(const StepMetrics& metrics) override {
    done.push_back(metrics.step);
    if (metrics.held_out_loss) evaluated_after.push_back(metrics.step);
  }
  void run_done(const std::optional<Evaluation>&) override { ++ends; }

  std::vector<std::int64_t> begun, passed_over, done, evaluated_after;
  int ends = 0;
};

TEST_F(SkippedIterations, AreToldToObserversAndTheLastTrainedOneIsEvaluated) {
  arguments.schedule.train_iters = arguments.schedule.lr_decay_iters = 6;
  arguments.schedule.iterations_to_skip = {1, 3, 5, 6};
  arguments.schedule.eval_interval = 3;  // of an iteration that is skipped
  arguments.schedule.eval_iters = 1;
  on_each_rank([&](int, Trainer& trainer) {
    Told told;
    const data::DataLoaders loaders{.train = batch_of, .valid = batch_of};
    EXPECT_EQ(run_steps(trainer, arguments.schedule, loaders, {&told}, {}).reason, EndReason::kLastStep);
    EXPECT_THAT(told.begun, ElementsAre(1, 3));
    EXPECT_THAT(told.done, ElementsAre(2, 4));
    EXPECT_THAT(told.passed_over, ElementsAre(1, 3, 5, 6));
    EXPECT_THAT(told.evaluated_after, ElementsAre(4));
    EXPECT_EQ(told.ends, 1);
    EXPECT_EQ(trainer.state().step, 6);
    EXPECT_EQ(trainer.state().samples_consumed, 48);
    EXPECT_EQ(trainer.state().samples_skipped, 32);
  });
}

}  // namespace
}  // namespace loom::train
