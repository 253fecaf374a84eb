// Promise: what a program cannot print or write is said, with a non-zero exit status; closed descriptors take nothing
//          from its files; generate says what is wrong before it prints.
// World:   the built program; ranks as threads; 4 steps of a model of 12176 parameters.
#include <gmock/gmock.h>

#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Words kRun = kFourSteps + Words{"--nproc-per-node", "2"};

TEST(StandardOutput, ThatIsFullIsSaidAtTheEndAndTheModelIsThere) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run_shell(R"(exec "$0" "$@" > /dev/full)", kRun + Words{"--save", "out"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.err,
            "shardloom: standard output: cannot write: No space left on device; a part of what was printed is lost\n");
  EXPECT_EQ(folder.metrics("out/metrics.jsonl").size(), 4u);
  EXPECT_TRUE(std::filesystem::exists(folder.path("out/model.safetensors")));
}

TEST(StandardOutput, ThatIsAClosedPipeDoesNotEndTheRun) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run_shell(R"("$0" "$@" | true; exit ${PIPESTATUS[0]})", kRun);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.err, "shardloom: standard output: cannot write: Broken pipe; a part of what was printed is lost\n");
  EXPECT_EQ(folder.metrics("metrics.jsonl").size(), 4u);
}

TEST(StandardOutput, OfHelpMayBeClosedByAReaderWhoHasReadEnough) {
  const ProgramFolder folder;
  for (const Words& words : {Words{"--help"}, Words{"train", "--help"}, Words{"convert", "--help"}}) {
    const Outcome outcome = folder.run_shell(R"((sleep 0.2; "$0" "$@"; exit $?) | true; exit ${PIPESTATUS[0]})", words);
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_THAT(outcome.err, IsEmpty());
  }
  const Outcome full = folder.run_shell(R"(exec "$0" "$@" > /dev/full)", {"train", "--help"});
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_THAT(full.err, HasSubstr("standard output: cannot write: No space left on device"));
}

TEST(Metrics, ToADashAreStandardOutputAlone) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run(kRun + Words{"--metrics-path", "-", "--log-interval", "1"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("step 4/4  loss "));
  folder.write("copy.jsonl", outcome.out);
  const auto lines = folder.metrics("copy.jsonl");  // every line is JSON
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines.back().at("step"), 4);
  EXPECT_FALSE(std::filesystem::exists(folder.path("-")));
  const Outcome report = folder.run(kRun + Words{"--metrics-path", "-", "--report", "r.html"});
  EXPECT_EQ(report.exit_code, 2);
  EXPECT_THAT(report.err, HasSubstr("--metrics-path: - is not a regular file, but --report reads the metrics back"));
}

TEST(StandardOutput, ThatIsFullIsSaidByPlansToo) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run_shell(
      R"(exec "$0" "$@" > /dev/full)", {"plan", "--model-config", "model.yaml", "--seq-length", "16", "--json", "-"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("standard output: cannot write: No space left on device"));
}

TEST(StandardStreams, ThatAreClosedGetNoFileOfTheRun) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run_shell(R"(exec "$0" "$@" <&- >&- 2>&-)", kRun + Words{"--save", "out"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(folder.metrics("out/metrics.jsonl").size(), 4u);  // every line is JSON
  EXPECT_EQ(folder.run({"generate", "out", "--prompt", "3", "--max-new-tokens", "2"}).exit_code, 0);
}

TEST(Metrics, OnAFullDiskAreMissedOnceAndTheModelIsSaved) {
  const ProgramFolder folder;
  const Outcome outcome = folder.run(kRun + Words{"--save", "out", "--metrics-path", "/dev/full"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(
      outcome.err,
      "warning: /dev/full: cannot write the metrics of step 1: No space left on device; training goes on without "
      "them\nshardloom: the run is done, but /dev/full: the metrics of 4 steps are missing (step 1: No space left "
      "on device)\n");
  EXPECT_THAT(outcome.out, HasSubstr("model written to out\n"));
}

TEST(FileSizeLimit, IsAnErrorWithAText) {
  const ProgramFolder folder;
  const Outcome outcome =
      folder.run_shell(R"(ulimit -f 20; "$0" "$@" 2>&1 | cat; exit ${PIPESTATUS[0]})", kRun + Words{"--save", "out"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("out/model.safetensors: cannot write: File too large\n"));
  EXPECT_FALSE(std::filesystem::exists(folder.path("out/model.safetensors")));
}

TEST(Generate, EndsWithoutAWarningWhereAllIsMadeThatWasAskedFor) {
  const ProgramFolder folder;
  ASSERT_EQ(folder.run(kRun + Words{"--save", "out"}).exit_code, 0);
  const Outcome outcome = folder.run({"generate", "out", "--prompt", "3", "--max-new-tokens", "4"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, IsEmpty());
  EXPECT_EQ(outcome.out.size(), 6u);
  const Outcome cut = folder.run({"generate", "out", "--prompt", "3", "--max-new-tokens", "40"});
  EXPECT_EQ(cut.exit_code, 0);
  EXPECT_EQ(cut.err, "warning: stopped after 31 of 40 tokens: max_position_embeddings is 32\n");
}

TEST(Generate, ContinuesSeveralPromptsAsItContinuesEach) {
  const ProgramFolder folder;
  ASSERT_EQ(folder.run(kRun + Words{"--save", "out"}).exit_code, 0);
  folder.write("prompts.txt", "3\n\n17 and\n");
  const Words length{"--max-new-tokens", "6"};
  const auto text = [&](const std::string& prompt) {
    return folder.run(Words{"generate", "out", "--prompt", prompt} + length).out;
  };
  const Outcome both = folder.run(Words{"generate", "out", "--prompt-file", "prompts.txt"} + length);
  EXPECT_EQ(both.exit_code, 0) << both.err;
  EXPECT_EQ(both.out, "--- prompt 1 of 2 ---\n" + text("3") + "--- prompt 2 of 2 ---\n" + text("17 and"));
  const Outcome streamed = folder.run({"generate", "out", "--prompt-file", "prompts.txt", "--stream"});
  EXPECT_EQ(streamed.exit_code, 2);
  EXPECT_EQ(streamed.err,
            "shardloom: --stream is given with 2 prompts, and takes one; leave it out, or give one prompt\n");
  folder.write("prompts.txt", "\n");
  EXPECT_EQ(folder.run({"generate", "out", "--prompt-file", "prompts.txt"}).err,
            "shardloom: --prompt-file prompts.txt has no prompt; write one a line\n");
}

TEST(Generate, TakesNoEndTokensOfBytesAndRefusesAPromptThatFillsTheLength) {
  const ProgramFolder folder;
  ASSERT_EQ(folder.run(kRun + Words{"--save", "out"}).exit_code, 0);
  const Outcome named = folder.run({"generate", "out", "--prompt", "3", "--add-eos-token", "<|end|>"});
  EXPECT_EQ(named.exit_code, 2);
  EXPECT_EQ(
      named.err,
      "shardloom: --add-eos-token is <|end|>, but the prompt is read as bytes, which have no tokens of that kind; "
      "leave it out, or use --stop-words\n");
  const Outcome full = folder.run({"generate", "out", "--prompt", "1234", "--max-length", "4"});
  EXPECT_EQ(full.exit_code, 2);
  EXPECT_EQ(full.err,
            "shardloom: the prompt has 4 tokens, and the whole text may have 4 (max_length); give a larger one, or a "
            "shorter prompt\n");
}

TEST(Generate, DoesNotEchoAPromptThatItRefuses) {
  const ProgramFolder folder;
  ASSERT_EQ(folder.run(kRun + Words{"--save", "out"}).exit_code, 0);
  const Outcome outcome = folder.run({"generate", "out", "--prompt", std::string(33, 'x')});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_EQ(outcome.err,
            "shardloom: the prompt has 33 tokens, but the model's max_position_embeddings is 32; use a shorter "
            "prompt\n");
}

}  // namespace
}  // namespace loom::test
