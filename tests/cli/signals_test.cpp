// Promise: the stop signals and the --exit flags end a run in order: all ranks after the same step, every line of
//          metrics whole, the model of that step saved where --save is given; exit status 128 + signal, or 0.
// World:   the built program; ranks as threads; a run of a million steps. program_mpi_test has ranks as processes.
#include <pty.h>

#include <fmt/format.h>
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

// What a run with --save leaves beside its model: no lock, no temporary.
std::vector<std::string> hidden_files(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with('.') || name.find("tmp") != std::string::npos) names.push_back(name);
  }
  return names;
}

TEST(StopSignals, EndTheRunWithASaveAndLeaveNoLock) {
  for (const auto& [signal, name, status] :
       {std::tuple(SIGHUP, "SIGHUP", 129), {SIGUSR1, "SIGUSR1", 138}, {SIGUSR2, "SIGUSR2", 140}}) {
    const ProgramFolder folder;
    StartedProgram run = folder.start(kLongRun + Words{"--save", "out", "--save-interval", "1000000"});
    ASSERT_TRUE(run.wait_for_steps("out/metrics.jsonl", 2));
    run.send(signal);
    const Outcome outcome = run.end();
    EXPECT_EQ(outcome.exit_code, status);
    const auto steps = folder.metrics("out/metrics.jsonl").size();
    EXPECT_THAT(outcome.err,
                HasSubstr(fmt::format("shardloom: stopped by {} after step {} of 1000000; the checkpoint of "
                                      "that step is in out\n",
                                      name, steps)));
    EXPECT_THAT(hidden_files(folder.path("out")), ::testing::IsEmpty()) << name;
    EXPECT_EQ(folder.read("out/latest_checkpointed_iteration.txt"), fmt::to_string(steps));
  }
}

TEST(StopSignals, WithTheHandlerAreARegularEnd) {
  const ProgramFolder folder;
  StartedProgram run = folder.start(kLongRun + Words{"--save", "out", "--exit-signal-handler"});
  ASSERT_TRUE(run.wait_for_steps("out/metrics.jsonl", 1));
  run.send(SIGUSR1);
  const Outcome outcome = run.end();
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, EndsWith("model written to out\nexiting program after receiving SIGUSR1.\n"));
}

// A ssh session that is closed: the terminal is gone, and what is printed there fails.
TEST(Sighup, OfATerminalThatIsClosedEndsTheRunWithASave) {
  const ProgramFolder folder;
  Words words = Words{SHARDLOOM_PROGRAM} + kLongRun + Words{"--save", "out"};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int terminal = -1;
  const pid_t pid = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (pid == 0) {
    if (::chdir(folder.path("").c_str()) == 0) ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  const auto has_steps = [&] { return std::ranges::count(folder.read("out/metrics.jsonl"), '\n') >= 2; };
  EXPECT_TRUE(StartedProgram::wait_until(has_steps));
  ::close(terminal);
  int status = 0;
  const bool ended = StartedProgram::wait_until([&] { return ::waitpid(pid, &status, WNOHANG) == pid; });
  if (!ended) ::kill(pid, SIGKILL);
  ASSERT_TRUE(ended && WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 129);
  EXPECT_TRUE(std::filesystem::exists(folder.path("out/model.safetensors")));
  EXPECT_THAT(hidden_files(folder.path("out")), ::testing::IsEmpty());
}

TEST(Sighup, ThatNohupIgnoresDoesNotEndTheRun) {
  const ProgramFolder folder;
  StartedProgram run = folder.start(kLongRun, {"/usr/bin/nohup"});
  ASSERT_TRUE(run.wait_for_steps("metrics.jsonl", 1));
  run.send(SIGHUP);
  const auto before = folder.metrics("metrics.jsonl").size();
  EXPECT_TRUE(run.wait_for_steps("metrics.jsonl", static_cast<int>(before) + 3));
  run.send(SIGTERM);
  const Outcome outcome = run.end();
  EXPECT_EQ(outcome.exit_code, 143);
  EXPECT_THAT(outcome.err, ::testing::Not(HasSubstr("SIGHUP")));
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
