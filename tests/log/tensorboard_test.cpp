// Promise: scalars have Megatron-LM's tags, steps and values, reach the file in time, and a full disk ends nothing.
// Clocks:  set by the test.
#include "engine/log/tensorboard.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/formats/events/event_file.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/files.h"
#include "tests/support/logged.h"

namespace loom::log {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class TensorBoardFile : public ::testing::Test {
 protected:
  TensorBoardFile() { options.tensorboard_dir = folder / "tb"; }

  TensorBoard& open(const TensorBoardRun& run = {.world_size = 4, .global_batch_size = 8}) {
    return board.emplace(
        options, run, [this] { return now_ns; }, [] { return 1e9; });
  }
  void step(const train::StepMetrics& metrics) {
    board->begin_step(metrics.step - 1);
    now_ns += 250'000'000;
    board->end_step(metrics.step - 1);
    board->step_done(metrics);
  }
  static train::StepMetrics metrics(std::int64_t step) {
    return {.step = step, .loss = 2.5, .grad_norm = 0.75, .lr = 9, .next_lr = 0.125, .samples_consumed = 8 * step};
  }
  // "tag step value" of what is in the file.
  std::vector<std::string> scalars() const {
    std::vector<std::string> found;
    io::read_scalars(board->file(), [&](const io::Scalar& scalar) {
      found.push_back(fmt::format("{} {} {}", scalar.tag, scalar.step, scalar.value));
    });
    return found;
  }
  std::vector<std::string> scalars_of_a_whole_run() {
    board->run_done({});
    return scalars();
  }

  const std::filesystem::path folder = test::fresh_folder();
  LogOptions options;
  std::int64_t now_ns = 0;
  std::optional<TensorBoard> board;
};

TEST_F(TensorBoardFile, HasMegatronsTagsByIterationAndBySamples) {
  open();
  step(metrics(3));
  EXPECT_THAT(scalars_of_a_whole_run(),
              ElementsAre("learning-rate 3 0.125", "learning-rate vs samples 24 0.125", "batch-size 3 8",
                          "batch-size vs samples 24 8", "lm loss 3 2.5", "lm loss vs samples 24 2.5", "loss-scale 3 1",
                          "loss-scale vs samples 24 1", "grad-norm 3 0.75", "grad-norm vs samples 24 0.75"));
}

TEST_F(TensorBoardFile, HasWhatIsAskedForBesides) {
  options.log_loss_scale_to_tensorboard = false;
  options.log_world_size_to_tensorboard = true;
  options.log_memory_to_tensorboard = true;
  options.log_timers_to_tensorboard = true;
  options.log_throughput = true;
  options.log_validation_ppl_to_tensorboard = true;
  options.log_interval = 2;
  open({.world_size = 4,
        .global_batch_size = 8,
        .flops_per_rank = [] { return 5e11; },
        .params_norm = [] { return 12.5; },
        .memory =
            [] {
              return MemoryFigures{4096, 1024, 8192, 2048};
            }});
  train::StepMetrics with = metrics(1);
  with.reports = {{"accuracy", 0.5}};
  step(with);
  board->run_done({});
  EXPECT_THAT(scalars(), ElementsAre("learning-rate 1 0.125", "learning-rate vs samples 8 0.125", "batch-size 1 8",
                                     "batch-size vs samples 8 8", "lm loss 1 2.5", "lm loss vs samples 8 2.5",
                                     "accuracy 1 0.5", "accuracy vs samples 8 0.5", "world-size 1 4",
                                     "world-size vs samples 8 4", "grad-norm 1 0.75", "grad-norm vs samples 8 0.75",
                                     "params-norm 1 12.5", "params-norm vs samples 8 12.5", "mem-reserved-bytes 1 4096",
                                     "mem-allocated-bytes 1 1024", "mem-max-allocated-bytes 1 2048"));
  with = metrics(2);
  with.held_out_loss = 0;
  step(with);
  const auto all = scalars_of_a_whole_run();
  EXPECT_THAT(std::vector(all.end() - 7, all.end()),
              ElementsAre("iteration-time 2 0.25", "iteration-time vs samples 16 0.25", "throughput 2 2",
                          "lm loss validation 2 0", "lm loss validation vs samples 16 0", "lm loss validation ppl 2 1",
                          "lm loss validation ppl vs samples 16 1"));
}

TEST_F(TensorBoardFile, OfASkippedStepHasNeitherLossNorGradientNorm) {
  open();
  train::StepMetrics skipped = metrics(1);
  skipped.skipped = true;
  skipped.loss_scale = 32768;
  skipped.samples_skipped = 8;
  step(skipped);
  EXPECT_THAT(scalars_of_a_whole_run(),
              ElementsAre("learning-rate 1 0.125", "learning-rate vs samples 8 0.125", "skipped-train-samples 1 8",
                          "batch-size 1 8", "batch-size vs samples 8 8", "loss-scale 1 32768",
                          "loss-scale vs samples 8 32768"));
}

TEST_F(TensorBoardFile, HasEveryNthStep) {
  options.tensorboard_log_interval = 2;
  open();
  for (int i = 1; i <= 4; ++i) step(metrics(i));
  const auto all = scalars_of_a_whole_run();
  EXPECT_EQ(all.size(), 20u);
  EXPECT_THAT(all, Not(Contains("lm loss 3 2.5")));
  EXPECT_THAT(all, Contains("lm loss 4 2.5"));
}

TEST_F(TensorBoardFile, IsWrittenWhenTheQueueIsFullOrTwoMinutesOld) {
  options.tensorboard_queue_size = 20;
  open();
  step(metrics(1));
  EXPECT_THAT(scalars(), IsEmpty());
  step(metrics(2));
  EXPECT_EQ(scalars().size(), 20u);
  step(metrics(3));
  EXPECT_EQ(scalars().size(), 20u);
  now_ns += 120'000'000'000;
  train::StepMetrics without = metrics(4);
  without.skipped = true;
  step(without);
  EXPECT_EQ(scalars().size(), 36u);
  step(metrics(5));
  board->run_stopped();
  EXPECT_EQ(scalars().size(), 46u);
}

TEST_F(TensorBoardFile, OfAnEvaluationAloneHasItsLoss) {
  open().evaluated(7, {1.5});
  EXPECT_THAT(scalars_of_a_whole_run(), ElementsAre("lm loss validation 7 1.5"));
}

TEST_F(TensorBoardFile, OfAResumedRunIsANewOneInTheSameFolder) {
  open();
  step(metrics(1));
  board->run_stopped();
  const auto first = board->file();
  board.reset();
  open();
  EXPECT_NE(board->file(), first);
  EXPECT_EQ(board->file().parent_path(), first.parent_path());
}

TEST_F(TensorBoardFile, ThatCannotBeWrittenEndsNothingAndSaysWhatIsMissing) {
  const test::Logged logged;
  options.tensorboard_queue_size = 1;
  open();
  const std::string file = board->file().string();
  {
    const test::FileSizeLimit full(50);
    step(metrics(1));
    step(metrics(2));
  }
  EXPECT_EQ(logged.text(), "warning: " + file +
                               ": cannot write the scalars up to step 1: File too large; training goes on without "
                               "them\n");
  step(metrics(3));
  EXPECT_EQ(board->problem(), file + ": 20 scalars are missing (up to step 1: File too large)");
  EXPECT_EQ(scalars().size(), 10u);
}

TEST_F(TensorBoardFile, InAFolderThatCannotBeIsRefused) {
  test::write_file(folder / "tb", "x");
  EXPECT_THAT(test::message_of<ConfigError>([&] { open(); }), HasSubstr("tb: cannot write scalars: "));
}

}  // namespace
}  // namespace loom::log
