// Promise: every flag and key of recompute trains to the same curve, is said, and is planned with less memory; what
//          does not go together ends with status 2 and what to write.
// World:   the built program; the tiny model of the folder (2 layers).
#include <gmock/gmock.h>

#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const Words kFull{"--recompute-granularity", "full", "--recompute-num-layers"};

struct Mode {
  Words flags;
  std::string said;
};

std::vector<Mode> modes() {
  return {
      {kFull + Words{"1", "--recompute-method", "uniform"}, "2 of the modules recomputed in backward, not reentrant"},
      {kFull + Words{"2", "--recompute-method", "uniform"}, "1 group of layers recomputed in backward, not reentrant"},
      {kFull + Words{"1", "--recompute-method", "block", "--recompute-activation-function", "--recompute-keep",
                     "selected_ops_needed"},
       "1 of the modules recomputed in backward, not reentrant, selected_ops_needed kept\nthe output of the activation "
       "function of 1 layer dropped after its use and recomputed in backward"},
      {{"--recompute-norm", "--recompute-norm-num-layers", "1"},
       "the outputs of the norms of 1 layer dropped after their use and recomputed in backward"},
      {{"--recompute-activations", "--kernels", "pytorch"}, "the core attention of 2 layers recomputed in backward"}};
}

void expect_same_curve(const ProgramFolder& folder, const std::string& expected, const std::string& actual) {
  const auto plain = folder.metrics(expected), recomputed = folder.metrics(actual);
  ASSERT_EQ(recomputed.size(), plain.size());
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(recomputed[i].at("loss"), plain[i].at("loss")) << i;
    EXPECT_EQ(recomputed[i].at("grad_norm"), plain[i].at("grad_norm")) << i;
  }
}

TEST(RecomputeFlags, LeaveTheCurveAsItIsWithAFileAndWithout) {
  const ProgramFolder folder;
  const Words alone = kTrain + Words{"--model-config", "model.yaml", "--train-iters", "4", "--lr", "0.01"};
  for (const Words& job : {alone, kFourSteps + Words{"--nproc-per-node", "2"}}) {
    for (const Mode& mode : modes()) {
      const bool composed = mode.flags.back() == "pytorch";
      const Words grain = composed ? Words{"--kernels", "pytorch"} : Words{};
      ASSERT_EQ(folder.run(job + grain + Words{"--metrics-path", "plain.jsonl"}).exit_code, 0);
      const Outcome outcome = folder.run(job + mode.flags + Words{"--metrics-path", "again.jsonl"});
      ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
      EXPECT_THAT(outcome.out, HasSubstr(mode.said + "\n"));
      expect_same_curve(folder, "plain.jsonl", "again.jsonl");
      for (const char* file : {"plain.jsonl", "again.jsonl"}) std::filesystem::remove(folder.path(file));
    }
  }
}

TEST(RecomputeKeys, OfOurOwnLeaveTheCurveAsItIs) {
  const ProgramFolder folder;
  folder.write("again.yaml", folder.read("fsdp2.yaml") +
                                 "recompute_modules: [\"model.layers.{*}\"]\nuse_reentrant: false\nrecompute_keep: "
                                 "selected_ops\nrecompute_every: 2\n");
  const Words two{"--nproc-per-node", "2"};
  ASSERT_EQ(folder.run(kFourSteps + two + Words{"--metrics-path", "plain.jsonl"}).exit_code, 0);
  const Outcome outcome = folder.run(with_value(kFourSteps, "--fsdp2-config-path", "again.yaml") + two +
                                     Words{"--metrics-path", "again.jsonl"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("1 of the modules recomputed in backward, not reentrant, selected_ops kept\n"));
  expect_same_curve(folder, "plain.jsonl", "again.jsonl");
}

TEST(RecomputeFlags, ArePlanned) {
  const ProgramFolder folder;
  const Words large{"--micro-batch-size", "64"};
  const auto peak = [&](const Words& more) {
    return plan_of_four(folder, large + more).at("memory").at("peak_allocated_bytes").get<double>();
  };
  for (const Mode& mode : modes()) {
    const bool composed = mode.flags.back() == "pytorch";
    EXPECT_LT(peak(mode.flags), peak(composed ? Words{"--kernels", "pytorch"} : Words{})) << mode.said;
  }
}

TEST(RecomputeFlags, OfFusedAttentionSayThatNothingChanges) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run(kFourSteps + Words{"--recompute-activations"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out + outcome.err,
              HasSubstr("--recompute-granularity selective changes nothing here: fused attention keeps neither scores "
                        "nor softmax for backward"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("recomputed in backward")));
}

TEST(RecomputeFlags, ThatTheModelOrTheFileDoesNotAllowEndWithStatusTwo) {
  const ProgramFolder folder;
  folder.write("modules.yaml", folder.read("fsdp2.yaml") + "recompute_modules: [\"model.layers.{*}\"]\n");
  const auto refused = [&](const Words& flags, const std::string& file = "fsdp2.yaml") {
    const Outcome outcome = folder.run(with_value(kFourSteps, "--fsdp2-config-path", file) + flags);
    EXPECT_EQ(outcome.exit_code, 2);
    return outcome.err;
  };
  EXPECT_THAT(refused(kFull + Words{"3", "--recompute-method", "uniform"}),
              HasSubstr("--recompute-num-layers is 3, and Qwen2ForCausalLM has 2 layers, which --recompute-method "
                        "uniform shares out evenly; use 1 or 2"));
  EXPECT_THAT(
      refused({"--recompute-norm"}, "modules.yaml"),
      HasSubstr("modules.yaml:3:1: recompute_modules is given beside --recompute-norm; remove the flag: the file "
                "says what is recomputed"));
  EXPECT_THAT(
      refused({"--recompute-keep", "selected_ops"}, "modules.yaml"),
      HasSubstr("recompute_keep is selected_ops, and use_reentrant is true, which keeps no results of operators; "
                "write use_reentrant: false"));
  EXPECT_THAT(
      refused({"--recompute-every", "3"}, "modules.yaml"),
      HasSubstr("recompute_every is 3, and recompute_modules selects 2 modules, so none is recomputed; use at most "
                "2"));
  EXPECT_THAT(refused({"--moe-layer-recompute"}),
              HasSubstr("--moe-layer-recompute is given, and no layer of Qwen2ForCausalLM that is not recomputed whole "
                        "has experts; remove it"));
  EXPECT_THAT(refused({"--recompute-in-bubble"}), HasSubstr("--recompute-in-bubble recomputes while a pipeline stage "
                                                            "waits, which is not built; remove it"));
}

}  // namespace
}  // namespace loom::test
