// Promise: a run's log is Megatron-LM's line where it is asked for, printed by one rank; TensorBoard's scalars are
//          those of metrics.jsonl; two runs can be compared.
// World:   the built program; ranks as threads; a model of 12176 parameters.
#include <gmock/gmock.h>
#include <map>
#include <regex>

#include "engine/formats/events/event_file.h"
#include "tests/support/program.h"

namespace loom::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

const Words kTwoRanks{"--nproc-per-node", "2"};
const Words kRun = kFourSteps + kTwoRanks;

std::size_t times(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// --- The log line

TEST(MegatronFormat, IsPrintedByOneRankEveryInterval) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run(kRun + Words{"--log-format", "megatron", "--log-interval", "2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::regex line(
      R"(\n \[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] iteration        2/       4 \| consumed samples:            8 \| )"
      R"(elapsed time per iteration \(ms\): \d+\.\d \| learning rate: \d\.\d{6}E-\d\d \| global batch size:     4 \| )"
      R"(lm loss: \d\.\d{6}E\+00 \| loss scale: 1\.0 \| grad norm: \d\.\d{3} \| )"
      R"(number of skipped iterations:   0 \| number of nan iterations:   0 \|\n)");
  const auto lines = std::sregex_iterator(outcome.out.begin(), outcome.out.end(), line);
  EXPECT_EQ(std::distance(lines, std::sregex_iterator()), 1) << outcome.out;
  EXPECT_EQ(times(outcome.out, " iteration        4/       4 |"), 1u);
  EXPECT_THAT(outcome.out, HasSubstr(" | learning rate: 0.000000E+00 | "));
  EXPECT_EQ(times(outcome.out, "elapsed time per iteration (ms)"), 2u);
  EXPECT_EQ(times(outcome.out, "\n validation loss at iteration 4 on validation set | lm loss value: "), 1u);
  EXPECT_THAT(outcome.out,
              HasSubstr("done with setup ...\ntraining ...\n[before the start of training step] datetime: "));
  EXPECT_EQ(times(outcome.out, "\n[Rank 0] (after 2 iterations) memory (MB) | allocated: 0.0"), 1u);
  EXPECT_EQ(times(outcome.out, "memory (MB)"), 1u);
  EXPECT_EQ(times(outcome.out, "[after training is done] datetime: "), 1u);
  EXPECT_THAT(outcome.out, Not(HasSubstr("tokens/s")));
  EXPECT_THAT(outcome.err, IsEmpty());
}

TEST(ShortFormat, IsPrintedByOneRankToo) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run(kRun + Words{"--log-interval", "2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(times(outcome.out, "step 2/4  loss "), 1u);
  EXPECT_EQ(times(outcome.out, "step 4/4  loss "), 1u);
  EXPECT_EQ(times(outcome.out, "step 4: held-out loss "), 1u);
  EXPECT_THAT(outcome.out, Not(HasSubstr("elapsed time per iteration")));
}

TEST(MegatronFormat, AveragesWhatTheMetricsHold) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run(kRun + Words{"--log-format", "megatron", "--log-interval", "4"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  double mean = 0;
  for (const auto& line : folder.metrics("metrics.jsonl")) mean += line.at("loss").get<double>() / 4;
  EXPECT_THAT(outcome.out, HasSubstr(fmt::format(" lm loss: {:.6E} |", mean)));
}

TEST(MegatronFormat, LeavesThePrintedScheduleOnTheFirstRank) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run(kRun + Words{"--log-format", "megatron", "--print-schedule"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Outcome with_bar = folder.run(kRun + Words{"--print-schedule"});
  const std::string part = "model.layers.1";
  EXPECT_EQ(times(outcome.out, part), times(with_bar.out, part));
}

TEST(MegatronFormat, OfEvaluationAloneHasNoStep) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run(kRun + Words{"--log-format", "megatron", "--skip-train"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("done with setup ...\nskipping training (--skip-train is on) ...\n"));
  EXPECT_EQ(times(outcome.out, "\n validation loss at iteration 0 on validation set | lm loss value: "), 1u);
  EXPECT_THAT(outcome.out, Not(HasSubstr("elapsed time")));
}

// --- TensorBoard

using Scalars = std::map<std::string, std::map<std::int64_t, float>>;

Scalars scalars_in(const fs::path& folder) {
  Scalars found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    io::read_scalars(entry.path(),
                     [&](const io::Scalar& scalar) { found[std::string(scalar.tag)][scalar.step] = scalar.value; });
  }
  return found;
}

TEST(TensorBoardDir, HasTheFiguresOfTheMetricsAndTheThroughputOfThePlan) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run(kRun + Words{"--tensorboard-dir", "logs/tb", "--log-timers-to-tensorboard",
                                                  "--log-throughput", "--log-memory-to-tensorboard", "--log-interval",
                                                  "4", "--no-log-loss-scale-to-tensorboard"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  Scalars scalars = scalars_in(folder.path("logs/tb"));
  const auto metrics = folder.metrics("metrics.jsonl");
  for (const auto& line : metrics) {
    const auto step = line.at("step").get<std::int64_t>();
    EXPECT_EQ(scalars["lm loss"].at(step), line.at("loss").get<float>());
    EXPECT_EQ(scalars["lm loss vs samples"].at(4 * step), line.at("loss").get<float>());
    EXPECT_EQ(scalars["grad-norm"].at(step), line.at("grad_norm").get<float>());
    EXPECT_EQ(scalars["learning-rate"].at(step),
              step == 4 ? 0.0F : metrics[static_cast<std::size_t>(step)].at("lr").get<float>());
  }
  EXPECT_EQ(scalars["lm loss validation"].at(4), metrics.back().at("held_out_loss").get<float>());
  EXPECT_GT(scalars["mem-reserved-bytes"].at(4), scalars["mem-allocated-bytes"].at(4));
  EXPECT_FALSE(scalars.contains("loss-scale"));

  const Words planned{"plan", "--model-config",     "model.yaml", "--world-size", "2",        "--seq-length",
                      "16",   "--micro-batch-size", "2",          "--json",       "plan.json"};
  ASSERT_EQ(folder.run(planned + kSharded).exit_code, 0);
  const double flops = nlohmann::json::parse(folder.read("plan.json")).at("throughput").at("model_flops");
  const double measured = 1e12 * double{scalars["throughput"].at(4)} * double{scalars["iteration-time"].at(4)};
  EXPECT_NEAR(measured, flops, 1e-5 * flops);
}

TEST(TensorBoardDir, IsRefusedBeforeTheFirstStepWhereItCannotBe) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run(kRun + Words{"--tensorboard-dir", "model.yaml/tb"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.err,
            "shardloom: --tensorboard-dir: cannot make the folder model.yaml/tb: Not a directory; give a folder that "
            "can be written\n");
  EXPECT_THAT(outcome.out, IsEmpty());
  const Outcome data = folder.run(kRun + Words{"--tensorboard-dir", "data"});
  EXPECT_EQ(data.exit_code, 2);
  EXPECT_EQ(data.err,
            "shardloom: --tensorboard-dir: data is also what --data-path reads; give another folder, so that nothing "
            "there is written over\n");
}

// --- Two runs

TEST(Compare, OfTheSameRunsEndsWithZeroAndOfOthersWithOneAndTheStep) {
  const ProgramFolder folder;
  ASSERT_EQ(folder.run(kRun + Words{"--save", "a", "--tensorboard-dir", "tb"}).exit_code, 0);
  ASSERT_EQ(folder.run(kRun + Words{"--save", "b"}).exit_code, 0);
  ASSERT_EQ(folder.run(with_value(kRun, "--lr", "0.02") + Words{"--metrics-path", "c.jsonl"}).exit_code, 0);
  const Outcome same = folder.run({"compare", "a", "b", "--assert-equal"});
  EXPECT_EQ(same.exit_code, 0) << same.err;
  EXPECT_EQ(same.out,
            "A: a/metrics.jsonl: 4 steps, 1 to 4\n"
            "B: b/metrics.jsonl: 4 steps, 1 to 4\n"
            "in common: 4 steps, 1 to 4; only in A: 0; only in B: 0\n"
            "loss: the same in 4 steps; relative error: largest 0, mean 0\n"
            "gradient norm: the same in 4 steps; relative error: largest 0, mean 0\n"
            "the runs are the same\n");
  const Outcome events = folder.run({"compare", "a", "tb"});
  EXPECT_EQ(events.exit_code, 0) << events.out << events.err;
  EXPECT_THAT(events.out, HasSubstr("B: tb (1 event file): 4 steps, 1 to 4\n"));

  const Outcome other = folder.run({"compare", "a", "c.jsonl"});
  EXPECT_EQ(other.exit_code, 1);
  const auto values_of = [&](const std::string& file, const char* key) {
    return folder.metrics(file)[1].at(key).get<double>();
  };
  EXPECT_THAT(other.out, HasSubstr(fmt::format("\nloss: differs in 3 of 4 steps, first at step 2: {} and {}; relative "
                                               "error: largest ",
                                               values_of("a/metrics.jsonl", "loss"), values_of("c.jsonl", "loss"))));
  EXPECT_THAT(other.out, HasSubstr("\nthe runs differ\n"));
  EXPECT_THAT(other.err, IsEmpty());
  const Outcome near = folder.run({"compare", "a", "c.jsonl", "--tolerance", "1"});
  EXPECT_EQ(near.exit_code, 0) << near.out;
  EXPECT_THAT(near.out, HasSubstr("\nthe runs are the same (--tolerance 1)\n"));
}

TEST(Compare, TakesTheLaterOfStepsThatWereMadeAgain) {
  const ProgramFolder folder;
  folder.write("a.jsonl", "{\"step\":1,\"loss\":5}\n{\"step\":2,\"loss\":4}\n{\"step\":3,\"loss\":3}\n");
  folder.write(
      "b.jsonl",
      "{\"step\":1,\"loss\":5}\n{\"step\":2,\"loss\":9}\n{\"step\":2,\"loss\":4}\n{\"step\":3,\"loss\":null}\n");
  const Outcome outcome = folder.run({"compare", "a.jsonl", "b.jsonl"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.out,
            "A: a.jsonl: 3 steps, 1 to 3\n"
            "B: b.jsonl: 3 steps, 1 to 3\n"
            "B: 1 value was made again, as after a resume; the later count\n"
            "in common: 3 steps, 1 to 3; only in A: 0; only in B: 0\n"
            "loss: differs in 1 of 3 steps, first at step 3: 3 and null; relative error: largest 0, mean 0\n"
            "gradient norm: not compared, as no step has it in both\n"
            "the runs differ\n");
}

TEST(Compare, RefusesWhatCannotBeCompared) {
  const ProgramFolder folder;
  folder.write("a.jsonl", "{\"step\":1,\"loss\":5}\n{\"step\":2,\"loss\":4}\n");
  folder.write("b.jsonl", "{\"step\":3,\"loss\":5}\n");
  folder.write("broken.jsonl", "{\"step\":1,\"loss\":5}\n{\"step\":2,\"lo\n");
  const std::pair<Words, std::string> refused[] = {
      {{"compare"}, "no runs are given; use shardloom compare A B"},
      {{"compare", "a.jsonl"}, "only one run is given; use shardloom compare A B"},
      {{"compare", "a.jsonl", "b.jsonl", "c"}, "'c' belongs to no flag; see shardloom compare --help"},
      {{"compare", "a.jsonl", "a.jsonl", "--tolerance", "-1"}, "--tolerance is -1; use a number of at least 0"},
      {{"compare", "a.jsonl", "none"}, "none: cannot read: No such file or directory"},
      {{"compare", "a.jsonl", "broken.jsonl"},
       "broken.jsonl:2: is no JSON from column 14 on; remove the line, or give another file"},
      {{"compare", "data", "a.jsonl"},
       "data: holds no metrics.jsonl and no event files of TensorBoard; give the folder of --save or of "
       "--tensorboard-dir, or a file"},
      {{"compare", "a.jsonl", "b.jsonl"},
       "a.jsonl and b.jsonl have no step with a loss in common: 2 steps, 1 to 2, and 1 step, 3 to 3; give two runs of "
       "the same steps"}};
  for (const auto& [words, message] : refused) {
    const Outcome outcome = folder.run(words);
    EXPECT_EQ(outcome.exit_code, 2) << message;
    EXPECT_EQ(outcome.err, "shardloom: " + message + "\n");
    EXPECT_THAT(outcome.out, IsEmpty());
  }
}

}  // namespace
}  // namespace loom::test
