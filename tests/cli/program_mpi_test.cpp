// Promise: processes as ranks train to the bits of threads as ranks, and refuse what is wrong without hanging.
// World:   the built program under mpirun with 2 processes.
#include <gmock/gmock.h>
#include <iterator>
#include <sstream>

#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;

const Words kMpirun{SHARDLOOM_MPIRUN, "-n", "2", "--oversubscribe", "--bind-to", "none"};

TEST(Mpi, HasTheBitsOfThreads) {
  const ProgramFolder folder;
  for (const char* grain : {"fast", "pytorch"}) {
    const Words run = kFourSteps + Words{"--kernel-grain", grain};
    const Outcome threads = folder.run(run + Words{"--save", "threads", "--nproc-per-node", "2"});
    ASSERT_EQ(threads.exit_code, 0) << threads.err;
    const Outcome processes = folder.run(run + Words{"--save", "processes"}, kMpirun);
    ASSERT_EQ(processes.exit_code, 0) << processes.err;
    const auto expected = folder.metrics("threads/metrics.jsonl");
    const auto actual = folder.metrics("processes/metrics.jsonl");
    ASSERT_EQ(actual.size(), 4u);
    for (std::size_t i = 0; i < actual.size(); ++i) {
      for (const char* key : {"step", "loss", "grad_norm", "lr"})
        EXPECT_EQ(actual[i].at(key), expected[i].at(key)) << grain << key << i;
    }
    EXPECT_EQ(actual.back().at("held_out_loss"), expected.back().at("held_out_loss"));
    EXPECT_EQ(folder.read("processes/model.safetensors"), folder.read("threads/model.safetensors"));
  }
}

TEST(Mpi, RefusesWhatIsWrongWithItsLineAndExitStatus2AndDoesNotHang) {
  const ProgramFolder folder;
  folder.write("fsdp2.yaml", "sharding_size: 3\n");
  const Outcome outcome = folder.run(kFourSteps, kMpirun);
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err,
              HasSubstr("shardloom: fsdp2.yaml:1:16: sharding_size is 3, but 2 ranks are running; use 1, 2 or "
                        "auto (all ranks)\n"));
}

// The processes that `pid` has started.
std::vector<int> children_of(int pid) {
  std::istringstream text(read_file(fmt::format("/proc/{0}/task/{0}/children", pid)));
  return {std::istream_iterator<int>(text), std::istream_iterator<int>()};
}

TEST(Mpi, ASignalToOneRankStopsAllAfterTheSameStepAndSavesTheModel) {
  const ProgramFolder folder;
  const Words run = with_value(kFourSteps, "--train-iters", "1000000") + Words{"--save", "out"};
  StartedProgram mpirun = folder.start(run, kMpirun);
  ASSERT_TRUE(mpirun.wait_for_steps("out/metrics.jsonl", 3));
  const auto ranks = children_of(mpirun.pid());
  ASSERT_EQ(ranks.size(), 2u);
  ASSERT_EQ(::kill(ranks.back(), SIGTERM), 0);
  const Outcome outcome = mpirun.end();
  EXPECT_EQ(outcome.exit_code, 143);
  EXPECT_THAT(outcome.err, HasSubstr(fmt::format("shardloom: stopped by SIGTERM after step {} of 1000000; the model of "
                                                 "that step is in out\n",
                                                 folder.metrics("out/metrics.jsonl").size())));
  EXPECT_EQ(folder.run({"generate", "out", "--prompt", "3", "--max-new-tokens", "2"}).exit_code, 0);
}

TEST(Mpi, AnOutputThatCannotBeWrittenIsSaidOnceWithExitStatus2) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run(kFourSteps + Words{"--save", "model.yaml/out"}, kMpirun);
  EXPECT_EQ(outcome.exit_code, 2);
  const std::string message =
      "shardloom: --save: cannot make the folder model.yaml/out: Not a directory; give a folder that can be written\n";
  const std::size_t said = outcome.err.find(message);
  ASSERT_NE(said, std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find(message, said + 1), std::string::npos) << "rank 1 writes nothing there";
}

}  // namespace
}  // namespace loom::test
