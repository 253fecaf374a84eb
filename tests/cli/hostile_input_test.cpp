// Promise: whatever files, flags and limits the program gets, it ends soon with one line that names the file or flag
//          and the next step; nothing of a user's text reaches the terminal raw.
// World:   the built program; a model of 12176 parameters.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class HostileInput : public ::testing::Test {
 protected:
  void expect_refusal(const Words& arguments, const std::string& message) {
    const Outcome outcome = folder.run(arguments);
    EXPECT_EQ(outcome.err, "shardloom: " + message + "\n");
    EXPECT_EQ(outcome.exit_code, 2);
  }
  // The planner on this model file, on 4 devices.
  Words plan(const std::string& model, const Words& more = {}) const {
    return Words{"plan", "--model-config", model, "--seq-length", "16"} + kSharded +
           (more.empty() ? Words{"--world-size", "4"} : more);
  }
  void write_model(const std::string& from, const std::string& to) const {
    std::string text = folder.read("model.yaml");
    folder.write("other.yaml", text.replace(text.find(from), from.size(), to));
  }

  const ProgramFolder folder;
};

// --- Sizes

TEST_F(HostileInput, AbsurdModelsAreRefusedAtTheirKeyByTrainingAndPlanning) {
  write_model("vocab_size: 256", "vocab_size: 144115188075855872");
  const std::string message = "other.yaml:2:1: vocab_size is 144115188075855872; it must be at most 2147483647";
  expect_refusal(plan("other.yaml"), message);
  expect_refusal(kTrain + kSharded + Words{"--model-config", "other.yaml"}, message);
  write_model("num_hidden_layers: 2", "num_hidden_layers: 2000000000");
  expect_refusal(plan("other.yaml"), "other.yaml:5:1: num_hidden_layers is 2000000000; it must be at most 4096");
}

TEST_F(HostileInput, PlansWhoseTensorsNoProcessCanAddressAreRefusedByShape) {
  write_model("max_position_embeddings: 32", "max_position_embeddings: 2147483647");
  const Outcome outcome = folder.run(Words{"plan", "--model-config", "other.yaml", "--seq-length", "1073741824"} +
                                     kSharded + Words{"--micro-batch-size", "10000000"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("takes more than 128 TiB, which no process can address; use smaller sizes\n"));
}

TEST_F(HostileInput, FlagsBeyondWhatTheEngineCountsAreRefused) {
  expect_refusal(kFourSteps + Words{"--compute-threads", "2147483647"},
                 "--compute-threads is 2147483647; use at most 1024, best the cores of this machine");
  expect_refusal(kTrain + kSharded + Words{"--model-config", "model.yaml", "--train-iters", "5000000000"},
                 "--train-iters is 5000000000; use at most 4294967295");
  expect_refusal(kFourSteps + Words{"--nproc-per-node", "100000"},
                 "--nproc-per-node is 100000; use at most 1024, as each is a thread; more ranks are processes "
                 "(mpirun)");
  expect_refusal(kTrain + kSharded + Words{"--model-config", "model.yaml", "--micro-batch-size", "2000000000"},
                 "--micro-batch-size is 2000000000; use at most 10000000");
  expect_refusal(kFourSteps + Words{"--distributed-timeout-minutes", "2000000000"},
                 "--distributed-timeout-minutes is 2000000000; use at most 525600, a year");
  expect_refusal(plan("model.yaml", {"--world-size", "2000000000"}),
                 "--world-size is 2000000000; use at most 10000000");
  expect_refusal(plan("model.yaml", {"--world-size", "1", "--global-batch-size", "2000000000"}),
                 "--global-batch-size is 2000000000, which makes 2000000000 micro-batches a step, above the 4096 that "
                 "a plan goes through; use at most 4096, or a larger --micro-batch-size or --world-size");
}

TEST_F(HostileInput, ProfileFlagsWithoutAProfileAreRefused) {
  expect_refusal(kFourSteps + Words{"--profile-with-cpu"},
                 "--profile-with-cpu is given, but --profile is not, so nothing is collected; add --profile");
  expect_refusal(kFourSteps + Words{"--profile-step-end", "9"},
                 "--profile-step-end is given, but --profile is not, so nothing is collected; add --profile");
}

// --- Files

TEST_F(HostileInput, PipesAndDevicesAsConfigurationsAreNamedAtOnce) {
  ASSERT_EQ(::mkfifo(folder.path("pipe.yaml").c_str(), 0600), 0);
  expect_refusal(plan("pipe.yaml"), "pipe.yaml: is a pipe; give the path of a regular file");
  std::filesystem::remove(folder.path("fsdp2.yaml"));
  std::filesystem::create_symlink("/dev/zero", folder.path("fsdp2.yaml"));
  expect_refusal(plan("model.yaml"), "fsdp2.yaml: is a device; give the path of a regular file");
}

TEST_F(HostileInput, LoopsOfLinksAreNamedWhereverTheyStand) {
  std::filesystem::create_symlink("loop", folder.path("loop"));
  expect_refusal(plan("loop"), "loop: Too many levels of symbolic links; give the path of a model's configuration");
  expect_refusal(Words{"train", "--model-config", "model.yaml", "--seq-length", "16", "--data-path", "loop"} + kSharded,
                 "--data-path 'loop': cannot read: Too many levels of symbolic links");
}

TEST_F(HostileInput, DeepJsonIsRefusedWithoutBeingShown) {
  folder.write("other.json", "{\"model_type\": \"qwen2\", \"hidden_act\": " + std::string(200000, '[') +
                                 std::string(200000, ']') + "}");
  expect_refusal(plan("other.json"), "other.json: nested deeper than 64 levels");
}

TEST_F(HostileInput, BytesThatAreNoUtf8AreRefusedWithTheirPlace) {
  folder.write("fsdp2.yaml", "sharding_size: \xff\n");
  expect_refusal(plan("model.yaml"), "fsdp2.yaml:1:16: the byte \\xff is not UTF-8; save the file as UTF-8");
}

TEST_F(HostileInput, NumbersThatAreNoneAreRefusedInWords) {
  folder.write("fsdp2.yaml", "sharding_size: .nan\n");
  expect_refusal(plan("model.yaml"),
                 "fsdp2.yaml:1:16: sharding_size is .nan; use a whole number of at least 1, or auto (all ranks)");
  write_model("rms_norm_eps: 1.0e-6", "rms_norm_eps: .inf");
  folder.write("fsdp2.yaml", "sharding_size: auto\n");
  expect_refusal(plan("other.yaml"), "other.yaml:9:1: rms_norm_eps is .inf; it must be finite");
}

TEST_F(HostileInput, AnUnknownClassGetsTheNearestAndTheList) {
  folder.write("fsdp2.yaml", "sharding_size: auto\nsub_modules_to_wrap: [Qwen2DecoderLayr]\n");
  const Outcome outcome = folder.run(plan("model.yaml"));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err,
              HasSubstr("shardloom: fsdp2.yaml:2:23: sub_modules_to_wrap: 'Qwen2DecoderLayr': there is no "
                        "such class in the model; did you mean Qwen2DecoderLayer? the model's classes are "));
  EXPECT_THAT(outcome.err, HasSubstr("Embedding"));
}

// --- Text

TEST_F(HostileInput, EscapesAndLinesOfFilesFlagsAndPathsStayText) {
  folder.write("fsdp2.yaml", "sharding_size: \"\\e[2J\\nshardloom: all is well\"\n");
  const Words all[] = {plan("model.yaml"),
                       plan("\x1b[2J\nshardloom: all is well.yaml"),
                       plan("model.yaml", {"--world-size", "\x1b[2J\nshardloom: all is well"}),
                       plan("model.yaml", {"--device", "\x1b[2J\nshardloom: all is well"}),
                       Words{"\x1b[2J\nshardloom: all is well"},
                       plan("model.yaml", {"--\x1b[2J\nshardloom: all is well"})};
  for (const Words& words : all) {
    const Outcome outcome = folder.run(words);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, Not(HasSubstr("\x1b"))) << outcome.err;
    EXPECT_THAT(outcome.err, Not(HasSubstr("\nshardloom"))) << outcome.err;
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
  }
}

TEST_F(HostileInput, ValuesOfAMegabyteAreCut) {
  folder.write("fsdp2.yaml", "sharding_size: " + std::string(1 << 20, 'x') + "\n");
  const Outcome outcome = folder.run(plan("model.yaml"));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_LT(outcome.err.size(), 500u);
  EXPECT_THAT(outcome.err, HasSubstr("... (1048576 bytes); use a whole number of at least 1, or auto (all ranks)"));
}

// --- A small machine

TEST_F(HostileInput, ASmallStackIsEnough) {
  const Words shell{"bash", "-c", "ulimit -s 64 && exec \"$@\"", "bash"};
  const Outcome outcome = folder.run(kFourSteps + Words{"--nproc-per-node", "2"}, shell);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(folder.metrics("metrics.jsonl"), ::testing::SizeIs(4));
}

TEST_F(HostileInput, AMachineWithoutMemorySaysWhichFlagsNeedLess) {
  const Words shell{"bash", "-c", "ulimit -v 600000 && exec \"$@\"", "bash"};
  const Outcome outcome = folder.run(
      kTrain + kSharded + Words{"--model-config", "model.yaml", "--nproc-per-node", "16", "--compute-threads", "1"},
      shell);
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("use fewer ranks"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("std::"))) << outcome.err;
}

}  // namespace
}  // namespace loom::test
