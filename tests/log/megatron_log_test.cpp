// Promise: the line is that of Megatron-LM's training_log, byte for byte; losses are means over the steps that the
//          optimizer made; evaluation and saving take no time of a step.
// Clocks:  set by the test; a step takes what the test says. The time zone is UTC.
#include "engine/log/megatron_log.h"

#include <cmath>
#include <cstdlib>
#include <ctime>
#include <gmock/gmock.h>
#include <limits>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

namespace loom::log {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr double kDate = 1'795'301'137.9;  // 2026-11-21 22:45:37 UTC

class MegatronLine : public ::testing::Test {
 protected:
  MegatronLine() {
    ::setenv("TZ", "UTC", 1);
    ::tzset();
  }
  ~MegatronLine() override {
    ::unsetenv("TZ");
    ::tzset();
  }

  MegatronLog log(MegatronLogOptions options) {
    return {std::move(options), out, [this] { return now_ns; }, [] { return kDate; }};
  }
  void step(MegatronLog& log, const train::StepMetrics& metrics, double ms = 1) {
    log.begin_step(metrics.step - 1);
    now_ns += static_cast<std::int64_t>(ms * 1e6);
    log.end_step(metrics.step - 1);
    now_ns += 3'600'000'000'000;  // an evaluation, a save
    log.step_done(metrics);
  }
  static train::StepMetrics metrics(std::int64_t step, double loss) {
    return {
        .step = step, .loss = loss, .grad_norm = 2.0004, .lr = 9.0, .next_lr = 1.25e-6, .samples_consumed = 8 * step};
  }
  std::string taken() {
    std::string text = out.str();
    out.str("");
    return text;
  }

  std::ostringstream out;
  std::int64_t now_ns = 5;
};

TEST_F(MegatronLine, IsMegatronsByteForByte) {
  MegatronLog log = this->log({.train_iters = 10, .log_interval = 5, .global_batch_size = 8});
  for (int i = 1; i <= 5; ++i) step(log, metrics(i, 10.875), 123.44);
  EXPECT_EQ(
      taken(),
      " [2026-11-21 22:45:37] iteration        5/      10 | consumed samples:           40 | elapsed time per "
      "iteration (ms): 123.4 | learning rate: 1.250000E-06 | global batch size:     8 | lm loss: 1.087500E+01 | "
      "loss scale: 1.0 | grad norm: 2.000 | number of skipped iterations:   0 | number of nan iterations:   0 |\n");
}

TEST_F(MegatronLine, HasTheNormOfTheParametersBehindThatOfTheGradients) {
  MegatronLog log = this->log({.log_interval = 1, .figures = {.params_norm = [] { return 12.3456; }}});
  step(log, metrics(1, 1));
  EXPECT_THAT(taken(), HasSubstr(" grad norm: 2.000 | params norm: 12.346 | number of skipped iterations:   0 |"));
}

TEST_F(MegatronLine, HasTheZerosOfTheGradientsBetweenTheTwoNorms) {
  MegatronLog log = this->log(
      {.log_interval = 1, .figures = {.params_norm = [] { return 1.5; }, .zeros_in_grad = [] { return 1234567.0; }}});
  step(log, metrics(1, 1));
  EXPECT_THAT(taken(), HasSubstr(" grad norm: 2.000 | num zeros: 1234567 | params norm: 1.500 |"));
}

TEST_F(MegatronLine, ComesEveryIntervalWithTheMeansOfThatInterval) {
  MegatronLog log = this->log({.train_iters = 6, .log_interval = 2, .global_batch_size = 8});
  step(log, metrics(1, 4), 10);
  EXPECT_THAT(taken(), IsEmpty());
  step(log, metrics(2, 3), 20);
  const std::string first = taken();
  EXPECT_THAT(first, HasSubstr(" iteration        2/       6 |"));
  EXPECT_THAT(first, HasSubstr(" elapsed time per iteration (ms): 15.0 |"));
  EXPECT_THAT(first, HasSubstr(" lm loss: 3.500000E+00 |"));
  step(log, metrics(3, 2), 1);
  step(log, metrics(4, 1), 2);
  const std::string second = taken();
  EXPECT_THAT(second, HasSubstr(" elapsed time per iteration (ms): 1.5 |"));
  EXPECT_THAT(second, HasSubstr(" lm loss: 1.500000E+00 |"));
  step(log, metrics(5, 1), 2);
  log.run_done({});
  EXPECT_THAT(taken(), IsEmpty()) << "an interval that is not whole";
}

TEST_F(MegatronLine, LeavesSkippedStepsOutOfTheMeanAndCountsThemOnce) {
  MegatronLog log = this->log({.train_iters = 9, .log_interval = 3});
  train::StepMetrics overflow = metrics(2, std::numeric_limits<double>::infinity());
  overflow.skipped = true;
  step(log, metrics(1, 4), 10);
  step(log, overflow, 40);
  step(log, metrics(3, 2), 10);
  const std::string line = taken();
  EXPECT_THAT(line, HasSubstr(" elapsed time per iteration (ms): 20.0 |"));
  EXPECT_THAT(line, HasSubstr(" lm loss: 3.000000E+00 |"));
  EXPECT_THAT(line, HasSubstr(" number of skipped iterations:   1 | number of nan iterations:   1 |"));
  for (int i = 4; i <= 5; ++i) step(log, metrics(i, 1));
  overflow.step = 6;
  overflow.loss = 5;
  overflow.loss_scale = 65536;
  overflow.samples_skipped = 16;
  step(log, overflow);
  const std::string next = taken();
  EXPECT_THAT(next, HasSubstr(" | consumed samples:           16 | skipped samples:           16 | elapsed"));
  EXPECT_THAT(next,
              HasSubstr(" loss scale: 65536.0 | number of skipped iterations:   1 | number of nan iterations:   0 |"))
      << "a step without an update has no gradient norm";
}

TEST_F(MegatronLine, OfSkippedStepsAloneHasNoLoss) {
  MegatronLog log = this->log({.train_iters = 1, .log_interval = 1});
  train::StepMetrics skipped = metrics(1, 3);
  skipped.skipped = true;
  step(log, skipped);
  EXPECT_THAT(taken(), HasSubstr(" global batch size:     1 | loss scale: 1.0 | number of skipped iterations:   1 |"));
}

TEST_F(MegatronLine, PrintsALossThatIsNotAboveZeroOrNotFinite) {
  MegatronLog log = this->log({.train_iters = 4, .log_interval = 1});
  step(log, metrics(1, -0.5));
  EXPECT_THAT(taken(), HasSubstr(" lm loss: -5.000000E-01 |"));
  step(log, metrics(2, 0));
  EXPECT_THAT(taken(), HasSubstr(" lm loss: 0.000000E+00 |"));
  step(log, metrics(3, std::numeric_limits<double>::quiet_NaN()));
  const std::string line = taken();
  EXPECT_THAT(line, HasSubstr(" lm loss: NAN |"));
  EXPECT_THAT(line, HasSubstr(" number of nan iterations:   1 |"));
}

TEST_F(MegatronLine, HasTheFiguresOfTheLossFunctionBehindTheLoss) {
  MegatronLog log = this->log({.train_iters = 2, .log_interval = 2});
  for (int i = 1; i <= 2; ++i) {
    train::StepMetrics with = metrics(i, 1);
    with.reports = {{"accuracy", 0.25 * i}, {"aux loss", 2}};
    step(log, with);
  }
  EXPECT_THAT(taken(),
              HasSubstr(" lm loss: 1.000000E+00 | accuracy: 3.750000E-01 | aux loss: 2.000000E+00 | loss scale:"));
}

TEST_F(MegatronLine, HasTheThroughputOfARankWhereItIsAskedFor) {
  MegatronLog log = this->log({.train_iters = 1, .log_interval = 1, .flops_per_rank = [] { return 2.5e13; }});
  step(log, metrics(1, 1), 500);
  EXPECT_THAT(taken(),
              HasSubstr(" elapsed time per iteration (ms): 500.0 | throughput per GPU (TFLOP/s/GPU): 50.0 | learning"));
}

TEST_F(MegatronLine, OfEvaluationsStandsBetweenDashes) {
  MegatronLog log = this->log({.train_iters = 3, .log_interval = 1});
  train::StepMetrics evaluated = metrics(2, 1);
  evaluated.held_out_loss = 1.5;
  step(log, evaluated);
  const std::string dashes(93, '-');  // one more than the text has
  const std::string text = taken();
  EXPECT_EQ(text.substr(text.find('\n') + 1),
            dashes +
                "\n validation loss at iteration 2 | lm loss value: 1.500000E+00 | lm loss PPL: 4.481689E+00 | \n" +
                dashes + "\n");
  evaluated.step = 3;
  evaluated.held_out_loss = 100;  // its perplexity is exp(20)
  step(log, evaluated);
  EXPECT_THAT(taken(), HasSubstr("\n validation loss at iteration 3 on validation set | lm loss value: 1.000000E+02 | "
                                 "lm loss PPL: 4.851652E+08 | \n"));
  log.run_done(train::Evaluation{0.0});
  EXPECT_THAT(taken(),
              HasSubstr("\n validation loss at iteration 3 on test set | lm loss value: 0.000000E+00 | lm loss "
                        "PPL: 1.000000E+00 | \n"));
}

TEST_F(MegatronLine, OfEvaluationAloneNamesTheStepsOfRunsBefore) {
  MegatronLog log = this->log({.train_iters = 3, .log_interval = 1});
  log.evaluated(7, {1});
  EXPECT_THAT(taken(), HasSubstr("\n validation loss at iteration 7 on validation set | "));
}

TEST_F(MegatronLine, OfTheBeginAndTheEndAreTheFixedOnes) {
  EXPECT_EQ(begin_lines(false, kDate),
            "[after dataloaders are built] datetime: 2026-11-21 22:45:37 \n"
            "done with setup ...\n"
            "training ...\n"
            "[before the start of training step] datetime: 2026-11-21 22:45:37 \n");
  EXPECT_THAT(begin_lines(true, kDate), HasSubstr("done with setup ...\nskipping training (--skip-train is on) ...\n"));
  EXPECT_EQ(end_line(kDate), "[after training is done] datetime: 2026-11-21 22:45:37 \n");
}

TEST_F(MegatronLine, OfMemoryComesOnceWithThePeaksOfAllStepsSoFar) {
  constexpr std::int64_t kMiB = 1 << 20;
  MemoryFigures memory;
  MegatronMemoryLine line(
      2, [&] { return memory; }, out);
  memory = {.reserved_bytes = 9 * kMiB,
            .allocated_bytes = kMiB,
            .max_reserved_bytes = 9 * kMiB,
            .max_allocated_bytes = 8 * kMiB};
  line.step_done(metrics(1, 1));
  memory = {.reserved_bytes = 4 * kMiB,
            .allocated_bytes = kMiB / 4 + 512,
            .max_reserved_bytes = 4 * kMiB,
            .max_allocated_bytes = 3 * kMiB};
  line.step_done(metrics(2, 1));
  line.step_done(metrics(4, 1));
  EXPECT_EQ(
      taken(),
      "[Rank 0] (after 2 iterations) memory (MB) | allocated: 0.25048828125 | max allocated: 8.0 | reserved: 4.0 | "
      "max reserved: 9.0\n");
}

// The scripts that time a run: of the lines with the phrase the first 200, of these the last 100, their mean to one
// decimal; the first global batch size times 1000 over that.
TEST_F(MegatronLine, IsWhatSummaryScriptsSearchFor) {
  MegatronLog log = this->log({.train_iters = 250, .log_interval = 1, .global_batch_size = 8});
  for (int i = 1; i <= 250; ++i) step(log, metrics(i, 1), i);
  std::istringstream lines(taken());
  const std::string phrase = "elapsed time per iteration (ms): ";
  const std::string batch = "global batch size:";
  std::vector<double> times;
  double batch_size = 0;
  for (std::string line; std::getline(lines, line) && times.size() < 200;) {
    if (line.find(phrase) == std::string::npos) continue;
    times.push_back(std::stod(line.substr(line.find(phrase) + phrase.size())));
    if (batch_size == 0) batch_size = std::stod(line.substr(line.find(batch) + batch.size()));
  }
  ASSERT_EQ(times.size(), 200u);
  const double mean = std::accumulate(times.end() - 100, times.end(), 0.0) / 100;
  EXPECT_DOUBLE_EQ(mean, 150.5);  // of 101 to 200
  EXPECT_DOUBLE_EQ(batch_size * 1000 / mean, 8000 / 150.5);
}

// Older ones take the 5th piece between colons, up to the bar.
TEST_F(MegatronLine, GivesScriptsTheTimeBehindTheFourthColon) {
  MegatronLog log = this->log({.train_iters = 1, .log_interval = 1});
  step(log, metrics(1, 1), 77.7);
  std::istringstream line(taken());
  std::string piece;
  for (int i = 0; i < 5; ++i) std::getline(line, piece, ':');
  EXPECT_EQ(piece.substr(0, piece.find('|')), " 77.7 ");
}

}  // namespace
}  // namespace loom::log
