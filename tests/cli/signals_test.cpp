// Promise: SIGINT, SIGTERM and the --exit flags end a run in order: all ranks after the same step, every line of
//          metrics whole, the model of that step saved where --save is given; exit status 128 + signal, or 0.
// World:   the built program; ranks as threads; a run of a million steps. program_mpi_test has ranks as processes.
#include <gmock/gmock.h>

#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

const Words kRun = kFourSteps + Words{"--nproc-per-node", "2", "--lr-decay-style", "constant"};
const Words kLongRun = with_value(kRun, "--train-iters", "1000000");

TEST(Sigterm, EndsTheRunAfterAStepAndSavesTheModelOfThatStep) {
  const ProgramFolder folder;
  StartedProgram run = folder.start(kLongRun + Words{"--save", "out"});
  ASSERT_TRUE(run.wait_for_steps("out/metrics.jsonl", 3));
  run.send(SIGTERM);
  const Outcome outcome = run.end();
  EXPECT_EQ(outcome.exit_code, 143);
  const auto lines = folder.metrics("out/metrics.jsonl");
  EXPECT_EQ(outcome.err, fmt::format("SIGTERM: the run ends after this step; a second SIGTERM ends it at once\n"
                                     "shardloom: stopped by SIGTERM after step {} of 1000000; the model of that step "
                                     "is in out\n",
                                     lines.back().at("step").get<int>()));
  EXPECT_EQ(lines.back().at("step"), lines.size());
  EXPECT_THAT(outcome.out, HasSubstr("model written to out\n"));

  // A run of as many steps ends in the same bytes.
  const Words whole = with_value(kRun, "--train-iters", fmt::to_string(lines.size())) + Words{"--save", "whole"};
  ASSERT_EQ(folder.run(whole).exit_code, 0);
  EXPECT_EQ(folder.read("out/model.safetensors"), folder.read("whole/model.safetensors"));
}

TEST(Sigterm, WithTheHandlerIsARegularEnd) {
  const ProgramFolder folder;
  StartedProgram run = folder.start(kLongRun + Words{"--save", "out", "--exit-signal-handler", "--sample-bytes", "5"});
  ASSERT_TRUE(run.wait_for_steps("out/metrics.jsonl", 2));
  run.send(SIGTERM);
  const Outcome outcome = run.end();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "SIGTERM: the run ends after this step; a second SIGTERM ends it at once\n");
  EXPECT_THAT(outcome.out, EndsWith("model written to out\nexiting program after receiving SIGTERM.\n"));
  EXPECT_EQ(folder.run({"generate", "out", "--prompt", "3", "--max-new-tokens", "2"}).exit_code, 0);
}

TEST(Sigint, WithTheHandlerStillHasItsStatus) {
  const ProgramFolder folder;
  StartedProgram run = folder.start(kLongRun + Words{"--exit-signal-handler"});
  ASSERT_TRUE(run.wait_for_steps("metrics.jsonl", 1));
  run.send(SIGINT);
  EXPECT_EQ(run.end().exit_code, 130);
}

TEST(ExitInterval, EndsTheRunInOrder) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run(kLongRun + Words{"--save", "out", "--exit-interval", "3", "--sample-bytes", "5"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, EndsWith("model written to out\nexiting program at iteration 3\n"));
  EXPECT_EQ(folder.metrics("out/metrics.jsonl").size(), 3u);
}

TEST(ExitDuration, EndsTheRunInOrder) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run(kLongRun + Words{"--exit-duration-in-mins", "0.02"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, MatchesRegex("(.|\n)*\nexiting program after 0\\.0[2-9] minutes\n"));
}

TEST(Sigint, WithoutSaveSaysThatNoModelIsWritten) {
  const ProgramFolder folder;
  StartedProgram run = folder.start(kLongRun);
  ASSERT_TRUE(run.wait_for_steps("metrics.jsonl", 1));
  run.send(SIGINT);
  run.send(SIGINT);  // within a second: still the first request
  const Outcome outcome = run.end();
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_THAT(outcome.err, HasSubstr("shardloom: stopped by SIGINT after step "));
  EXPECT_THAT(outcome.err, HasSubstr(" of 1000000; no model is written\n"));
}

TEST(Sigterm, WritesTheProfileOfTheStepsThatWereMade) {
  const ProgramFolder folder;
  StartedProgram run =
      folder.start(kLongRun + Words{"--profile", "--profile-step-start", "1", "--profile-step-end", "1000000"});
  ASSERT_TRUE(run.wait_for_steps("metrics.jsonl", 3));
  run.send(SIGTERM);
  const Outcome outcome = run.end();
  EXPECT_EQ(outcome.exit_code, 143);
  const std::string trace = fmt::format("profile_dir/rank0_steps1-{}.json", folder.metrics("metrics.jsonl").size() - 1);
  EXPECT_THAT(outcome.err, HasSubstr("info: profile written to ./" + trace + "\n"));
  EXPECT_TRUE(std::filesystem::exists(folder.path(trace)));
}

}  // namespace
}  // namespace loom::test
