// Promise: a run that is killed at any moment, also while it saves, goes on with --load as if it had not been: the last
//          checkpoint is byte for byte that of a run that was left alone. A signal, a full disk and another number of
//          ranks lose nothing either.
// World:   the built program; ranks as threads. SHARDLOOM_KILLS: how often a run is killed (4 if not given).
//          program_mpi_test kills single processes of a run.
#include "tests/support/checkpoints.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <random>

#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const Words kSaving = kFourSteps + Words{"--nproc-per-node", "2", "--save", "out", "--save-interval", "2"};

TEST(Killed, GoesOnAsIfItHadNotBeen) {
  const ProgramFolder folder;
  const std::int64_t steps = 200;
  const Words run = with_value(kSaving, "--train-iters", fmt::to_string(steps));
  ASSERT_EQ(folder.run(with_value(run, "--save", "whole")).exit_code, 0);
  std::mt19937 random(20261122);  // NOLINT: the same moments in every run
  int killed = 0;
  int started_runs = 0;
  for (int i = 0; killed < kills() && i < 10 * kills(); ++i) {
    ++started_runs;
    Words again = run + Words{"--load", "out"};
    if (i % 2 == 1) again.emplace_back("--async-save");
    StartedProgram started = folder.start(again);
    std::this_thread::sleep_for(std::chrono::milliseconds(std::uniform_int_distribution(20, 400)(random)));
    started.send(SIGKILL);
    const Outcome outcome = started.end();
    killed += outcome.exit_code == 128 + SIGKILL ? 1 : 0;
    if (outcome.exit_code == 0)
      std::filesystem::remove_all(folder.path("out"));  // it was done: once more from the start
    ASSERT_TRUE(outcome.exit_code == 0 || outcome.exit_code == 128 + SIGKILL) << outcome.err;
  }
  fmt::print("{} of {} runs were killed before their end\n", killed, started_runs);
  EXPECT_EQ(killed, kills());
  const Outcome last = folder.run(run + Words{"--load", "out"});
  ASSERT_EQ(last.exit_code, 0) << last.err;
  expect_same_checkpoint(folder.path("out"), folder.path("whole"), steps);
}

TEST(Finished, HasNothingToDo) {
  const ProgramFolder folder;
  ASSERT_EQ(folder.run(kSaving).exit_code, 0);
  const Outcome again = folder.run(kSaving + Words{"--load", "out"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("at iteration 4\n"));
  EXPECT_THAT(again.out, Not(HasSubstr("saving checkpoint")));
}

TEST(Stopped, BySigtermItSavesAndGoesOn) {
  const ProgramFolder folder;
  const Words run = with_value(with_value(kSaving, "--train-iters", "600"), "--save-interval", "10000");
  ASSERT_EQ(folder.run(with_value(run, "--save", "whole")).exit_code, 0);
  StartedProgram started = folder.start(run);
  ASSERT_TRUE(started.wait_for_steps("out/metrics.jsonl", 3));
  started.send(SIGTERM);
  const Outcome stopped = started.end();
  EXPECT_EQ(stopped.exit_code, 143);
  EXPECT_THAT(stopped.err, HasSubstr("; the checkpoint of that step is in out\n"));
  ASSERT_EQ(folder.run(run + Words{"--load", "out"}).exit_code, 0);
  expect_same_checkpoint(folder.path("out"), folder.path("whole"), 600);
  // The metrics are one file without a gap.
  const auto lines = folder.metrics("out/metrics.jsonl");
  ASSERT_EQ(lines.size(), 600u);
  for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i].at("step"), i + 1);
}

TEST(Resumed, UnderAnotherNumberOfRanksItGoesAlongTheSameCurve) {
  const ProgramFolder folder;
  ASSERT_EQ(folder.run(with_value(kSaving, "--train-iters", "8") + Words{"--metrics-path", "whole.jsonl"}).exit_code,
            0);
  const auto whole = folder.metrics("whole.jsonl");
  for (const char* ranks : {"1", "2"}) {
    Words rest = with_value(kFourSteps, "--train-iters", "8") +
                 Words{"--nproc-per-node", ranks, "--load", "out", "--ckpt-step", "4", "--metrics-path", "rest.jsonl"};
    const Outcome outcome = folder.run(rest);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("successfully loaded checkpoint from out [ t 1/1, p 1/1 ] at iteration 4\n"));
    const auto lines = folder.metrics("rest.jsonl");
    ASSERT_EQ(lines.size(), 4u);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(lines[i].at("loss").get<double>(), whole[4 + i].at("loss").get<double>(), 1e-5);
    }
    std::filesystem::remove(folder.path("rest.jsonl"));
  }
}

// A limit on the size of files stands in for a full disk: writing fails after a few kilobytes.
TEST(DiskFull, StopsTheRunAndLeavesTheFormerCheckpoint) {
  const ProgramFolder folder;
  ASSERT_EQ(folder.run(kSaving).exit_code, 0);
  const Words more = with_value(kSaving, "--train-iters", "8") + Words{"--lr-decay-iters", "4", "--load", "out"};
  const Outcome outcome = folder.run_shell("trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\"", more);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("the checkpoint cannot be written: "));
  EXPECT_THAT(outcome.err, HasSubstr("__0_0.distcp: cannot write: File too large"));
  EXPECT_THAT(outcome.err, HasSubstr("the former one is whole"));
  EXPECT_EQ(folder.read("out/latest_checkpointed_iteration.txt"), "4");
  ASSERT_EQ(folder.run(more).exit_code, 0);
}

TEST(DiskFull, WithContinueTheRunGoesOnAndSaysAtTheEndWhatIsMissing) {
  const ProgramFolder folder;
  ASSERT_EQ(folder.run(kSaving).exit_code, 0);
  const Words more = with_value(kSaving, "--train-iters", "8") +
                     Words{"--lr-decay-iters", "4", "--load", "out", "--on-save-error", "continue"};
  const Outcome outcome = folder.run_shell("trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\"", more);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("the former one is whole, and training goes on"));
  EXPECT_THAT(outcome.err, HasSubstr("the run is done, but no checkpoint of its last step is in out"));
  EXPECT_EQ(folder.metrics("out/metrics.jsonl").size(), 8u);
  EXPECT_EQ(folder.read("out/latest_checkpointed_iteration.txt"), "4");
}

TEST(Loaded, WithSkipTrainItIsEvaluated) {
  const ProgramFolder folder;
  ASSERT_EQ(folder.run(kSaving).exit_code, 0);
  const Outcome outcome = folder.run(kFourSteps + Words{"--load", "out", "--skip-train", "--metrics-path", "e.jsonl"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(folder.metrics("e.jsonl").at(0).at("held_out_loss"),
            folder.metrics("out/metrics.jsonl").back().at("held_out_loss"));
}

TEST(Loaded, WhereThereIsNothingItBeginsAnewOrEnds) {
  const ProgramFolder folder;
  const Outcome anew = folder.run(kFourSteps + Words{"--load", "nowhere"});
  EXPECT_EQ(anew.exit_code, 0) << anew.err;
  EXPECT_THAT(anew.out,
              HasSubstr("WARNING: could not find the metadata file nowhere/latest_checkpointed_iteration.txt\n"
                        "    will not load any checkpoints and will start from random\n"));
  const Outcome ended = folder.run(kFourSteps + Words{"--load", "nowhere", "--exit-on-missing-checkpoint"});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.err, HasSubstr("--load is nowhere, where no checkpoint is"));
}

}  // namespace
}  // namespace loom::test
