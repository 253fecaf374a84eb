// Promise: processes as ranks train to the bits of threads as ranks, and refuse what is wrong without hanging.
// World:   the built program under mpirun with 2 processes.
#include <gmock/gmock.h>

#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

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

// The launcher shows a terminal to every process and hands on lines: a bar that redraws itself would be one long line.
TEST(Mpi, PrintsLinesAndNoBarThatRedrawsItself) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run(kFourSteps, kMpirun);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("step 4/4  loss "));
  EXPECT_THAT(outcome.out, Not(HasSubstr("] 4/4")));
  for (std::size_t at = outcome.out.find('\r'); at != std::string::npos; at = outcome.out.find('\r', at + 1)) {
    ASSERT_EQ(outcome.out.substr(at, 2), "\r\n") << "a terminal's end of line is all that it may add";
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

}  // namespace
}  // namespace loom::test
