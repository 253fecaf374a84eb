// Promise: what workers write is in the logs and on the console that the flags name, each line whole.
// World:   one agent; workers are shell scripts.
#include <algorithm>
#include <gmock/gmock.h>
#include <sstream>

#include "tests/launcher/agents.h"

namespace loom::launcher {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The only folder or file in `folder`.
std::filesystem::path only_entry(const std::filesystem::path& folder) {
  const std::filesystem::directory_iterator entries(folder);
  EXPECT_EQ(std::distance(entries, {}), 1) << folder;
  return std::filesystem::directory_iterator(folder)->path();
}

TEST(LauncherOutput, RedirectsAreWrittenAndNotShown) {
  Job job("echo out $RANK; echo err $RANK >&2");
  job.options.workers = 2;
  job.options.run_id = "a/b";
  job.options.log_dir = job.folder() / "logs";
  job.options.redirects = {.otherwise = Streams::kBoth, .of_worker = {{1, Streams::kErr}}};
  const AgentEnd end = job.start(0).end();
  const auto run = only_entry(*job.options.log_dir);
  EXPECT_THAT(run.filename().string(), ::testing::StartsWith("a_b_"));
  EXPECT_EQ(test::read_file(run / "attempt_0/0/stdout.log"), "out 0\n");
  EXPECT_EQ(test::read_file(run / "attempt_0/0/stderr.log"), "err 0\n");
  EXPECT_EQ(test::read_file(run / "attempt_0/1/stderr.log"), "err 1\n");
  EXPECT_FALSE(std::filesystem::exists(run / "attempt_0/1/stdout.log"));
  EXPECT_EQ(end.out, "out 1\n");
  EXPECT_THAT(end.err, AllOf(Not(HasSubstr("err 0")), Not(HasSubstr("err 1"))));
}

TEST(LauncherOutput, TeeShowsLinesWhileTheWorkerRuns) {
  Job job("echo begun; until test -e go; do sleep 0.05; done");
  job.options.log_dir = job.folder() / "logs";
  job.options.tee.otherwise = Streams::kOut;
  AgentProcess agent = job.start(0);
  EXPECT_TRUE(wait_until([&] { return job.read("agent0.out") == "[default0]:begun\n"; }));
  test::write_file(job.folder() / "go", "");
  EXPECT_EQ(agent.end().status, 0);
  EXPECT_EQ(test::read_file(only_entry(*job.options.log_dir) / "attempt_0/0/stdout.log"), "begun\n");
}

TEST(LauncherOutput, ARestartHasAFolderOfItsOwn) {
  Job job("echo try $TORCHELASTIC_RESTART_COUNT; test $TORCHELASTIC_RESTART_COUNT = 1");
  job.options.log_dir = job.folder() / "logs";
  job.options.redirects.otherwise = Streams::kOut;
  job.options.max_restarts = 1;
  EXPECT_EQ(job.start(0).end().status, 0);
  const auto run = only_entry(*job.options.log_dir);
  EXPECT_EQ(test::read_file(run / "attempt_0/0/stdout.log"), "try 0\n");
  EXPECT_EQ(test::read_file(run / "attempt_1/0/stdout.log"), "try 1\n");
}

TEST(LauncherOutput, LinesOfSeveralWorkersStayWhole) {
  Job job("i=0; while [ $i -lt 200 ]; do printf $RANK$RANK$RANK; printf \"$RANK$RANK$RANK\\n\"; i=$((i+1)); done");
  job.options.workers = 3;
  std::istringstream lines(job.start(0).end().out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_EQ(line, std::string(6, line.empty() ? '?' : line.front()));
  }
  EXPECT_EQ(count, 600);
}

TEST(LauncherOutput, OnlyTheFilteredWorkersAreShown) {
  Job job("echo of $RANK");
  job.options.workers = 3;
  job.options.shown_workers = {1};
  EXPECT_EQ(job.start(0).end().out, "of 1\n");
}

TEST(LauncherOutput, ALineWithoutEndIsShownInParts) {
  Job job("head -c 200000 /dev/zero | tr '\\0' x");
  job.options.workers = 2;
  job.options.shown_workers = {0};
  const AgentEnd end = job.start(0).end();
  EXPECT_EQ(std::ranges::count(end.out, 'x'), 200000);
  EXPECT_EQ(std::ranges::count(end.out, '\n'), 4);
}

TEST(LauncherOutput, MsrunHasALogOfEachWorkerAndOneOfTheScheduler) {
  ::setenv("RANK", "7", 1);
  Job job(
      "echo $MS_ROLE $MS_WORKER_NUM $MS_SCHED_HOST $MS_NODE_ID $MS_CLUSTER_TIMEOUT $DEVICE_ID $RANK_ID $RANK_SIZE "
      "$LOCAL_WORLD_SIZE ${RANK-none}; echo bad >&2");
  job.options.tool = Tool::kMsrun;
  job.options.workers = 2;
  job.options.log_dir = job.folder() / "logs";
  const AgentEnd end = job.start(0).end();
  ::unsetenv("RANK");
  EXPECT_EQ(end.status, 0) << end.err;
  EXPECT_EQ(end.out, "");
  EXPECT_EQ(job.read("logs/worker_0.log"), "MS_WORKER 2 127.0.0.1 0 60 0 0 2 2 none\nbad\n");
  EXPECT_EQ(job.read("logs/worker_1.log"), "MS_WORKER 2 127.0.0.1 1 60 1 1 2 2 none\nbad\n");
  EXPECT_THAT(job.read("logs/scheduler.log"),
              AllOf(HasSubstr("joined: 1 of 1 nodes"), HasSubstr("start 0: 2 workers on 1 nodes"),
                    HasSubstr("the job has succeeded")));
}

TEST(LauncherOutput, MsrunReportsTheLastLinesOfTheWorkersLog) {
  Job job("if [ $RANK_ID = 1 ]; then echo last word; exit 5; fi; sleep 600");
  job.options.tool = Tool::kMsrun;
  job.options.workers = 2;
  job.options.worker_log_name = "of_{hostname}";
  job.options.host = "node-a";
  job.options.log_dir = job.folder() / "logs";
  job.options.tee.otherwise = Streams::kBoth;
  job.options.shown_workers = {1};
  const AgentEnd end = job.start(0).end();
  EXPECT_EQ(end.status, 1);
  EXPECT_EQ(end.out, "[worker_1]:last word\n");
  EXPECT_EQ(job.read("logs/of_node-a_1.log"), "last word\n");
  EXPECT_THAT(end.err, HasSubstr("rank 1 (local rank 1 on node-a) ended with exit code 5"));
}

TEST(LauncherOutput, MsrunBindsWorkersToCores) {
  Job job("taskset -cp $$ > cores$RANK_ID");
  job.options.tool = Tool::kMsrun;
  job.options.log_dir = job.folder();
  job.options.bind_core = R"({"device0": ["0-0"]})";
  const AgentEnd end = job.start(0).end();
  if (end.status != 0) GTEST_SKIP() << "core 0 is not of this process: " << end.err;
  EXPECT_THAT(job.read("cores0"), ::testing::EndsWith("affinity list: 0\n"));
}

}  // namespace
}  // namespace loom::launcher
