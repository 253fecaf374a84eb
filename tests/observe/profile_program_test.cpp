// Promise: the program writes profiles and traces of plans where it is told to, and says once that a run is too short
//          for a profile.
// World:   the built program; 2 ranks as threads.
#include <gmock/gmock.h>

#include "tests/support/program.h"
#include "tests/support/trace_reader.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(TrainWithProfile, WritesAndSaysWhere) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run(
      kFourSteps + Words{"--nproc-per-node", "2", "--profile", "--profile-step-start", "1", "--profile-step-end", "2"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("profile written to ./profile_dir/rank0_steps1-1.json\n"));
  const TraceReader trace(folder.read("profile_dir/rank0_steps1-1.json"));
  EXPECT_THAT(trace.loose_ends, IsEmpty());
}

TEST(TrainWithProfile, SaysOnceThatTheRunIsTooShort) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run(kFourSteps + Words{"--nproc-per-node", "2", "--profile"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(count(outcome.err,
                  "--profile-step-start is 10, but --train-iters is 4, so no step is profiled; use a start below 4"),
            1)
      << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(folder.path("profile_dir")));
}

TEST(PlanWithTrace, WritesTheStepForPerfetto) {
  const ProgramFolder folder;
  const Outcome outcome =
      folder.run({"plan", "--model-config", "model.yaml", "--use-torch-fsdp2", "--fsdp2-config-path", "fsdp2.yaml",
                  "--seq-length", "16", "--world-size", "4", "--trace", "step.json", "--json", "step.plan.json"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const TraceReader trace(folder.read("step.json"));
  EXPECT_THAT(trace.loose_ends, IsEmpty());
  const auto plan = nlohmann::json::parse(folder.read("step.plan.json"));
  EXPECT_EQ(trace.lane(0, "phases").front().end_ns, plan.at("time").at("step_ns"));
}

}  // namespace
}  // namespace loom::test
