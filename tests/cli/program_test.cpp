// Promise: the program trains to the same bits however its ranks are run, what it saves is what it has trained, and
//          what is wrong with the user's input is said in one line with exit status 2.
// World:   the built program; ranks as threads; 4 steps of a model of 12176 parameters.
#include "tests/support/program.h"

#include <gmock/gmock.h>

namespace loom::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// What a run computed: (loss, gradient norm) of every step, the last held-out loss and the bytes of the saved weights.
struct Computed {
  std::vector<std::pair<double, double>> steps;
  double held_out_loss = 0;
  std::string weights;

  bool operator==(const Computed&) const = default;
};

Computed four_steps(const ProgramFolder& folder, const std::string& name, const Words& more) {
  const Outcome outcome = folder.run(kFourSteps + Words{"--save", name} + more);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  Computed computed;
  for (const auto& line : folder.metrics(name + "/metrics.jsonl"))
    computed.steps.emplace_back(line.at("loss"), line.at("grad_norm"));
  computed.held_out_loss = folder.metrics(name + "/metrics.jsonl").back().at("held_out_loss");
  computed.weights = folder.read(name + "/model.safetensors");
  return computed;
}

const Words kTwoRanks{"--nproc-per-node", "2"};

// --- Same bits

TEST(Train, TwoRunsOfTwoRanksHaveTheSameBits) {
  const ProgramFolder folder;
  const Computed first = four_steps(folder, "first", kTwoRanks);
  ASSERT_EQ(first.steps.size(), 4u);
  EXPECT_LT(first.steps[3].first, first.steps[0].first);
  EXPECT_EQ(four_steps(folder, "second", kTwoRanks), first);
}

TEST(Train, BothExecutorsHaveTheSameBits) {
  const ProgramFolder folder;
  EXPECT_EQ(four_steps(folder, "inline", kTwoRanks + Words{"--device-executor", "inline"}),
            four_steps(folder, "threaded", kTwoRanks + Words{"--device-executor", "threaded"}));
}

TEST(Train, OneAndTwoComputeThreadsHaveTheSameBits) {
  const ProgramFolder folder;
  EXPECT_EQ(four_steps(folder, "one", kTwoRanks + Words{"--compute-threads", "1"}),
            four_steps(folder, "two", kTwoRanks + Words{"--compute-threads", "2"}));
}

TEST(Train, OneRankHasTheCurveOfTwo) {
  const ProgramFolder folder;
  const Computed one = four_steps(folder, "one", {"--nproc-per-node", "1"});
  const Computed two = four_steps(folder, "two", kTwoRanks);
  ASSERT_EQ(one.steps.size(), two.steps.size());
  for (std::size_t i = 0; i < one.steps.size(); ++i) EXPECT_NEAR(one.steps[i].first, two.steps[i].first, 1e-5) << i;
  EXPECT_NEAR(one.held_out_loss, two.held_out_loss, 1e-5);
}

// --- metrics.jsonl

TEST(Train, WritesTheKeysOfMetricsInTheirOrder) {
  const ProgramFolder folder;
  four_steps(folder, "out", kTwoRanks);
  const auto lines = folder.metrics("out/metrics.jsonl");
  ASSERT_EQ(lines.size(), 4u);
  const auto keys = [](const nlohmann::ordered_json& object) {
    std::vector<std::string> names;
    for (const auto& [key, value] : object.items()) names.push_back(key);
    return names;
  };
  EXPECT_THAT(keys(lines[0]), ElementsAre("step", "loss", "grad_norm", "lr", "tokens_per_second", "peak_memory_bytes",
                                          "peak_host_memory_bytes"));
  EXPECT_THAT(keys(lines[3]), ElementsAre("step", "loss", "grad_norm", "lr", "tokens_per_second", "peak_memory_bytes",
                                          "peak_host_memory_bytes", "held_out_loss"));
  EXPECT_THAT(keys(lines[0].at("peak_memory_bytes")),
              ElementsAre("shard", "gather_buffer", "unsharded", "gradient", "reduce_buffer", "optimizer_state",
                          "activation", "temporary", "total"));
  EXPECT_EQ(lines[3].at("step"), 4);
  EXPECT_GT(lines[3].at("peak_memory_bytes").at("optimizer_state"), 0);
}

// --- What is saved

TEST(Save, IsReadBackByTrainingWithTheSameHeldOutLoss) {
  const ProgramFolder folder;
  const Computed saved = four_steps(folder, "out", kTwoRanks);
  // A step that changes nothing, then the evaluation.
  for (const char* ranks : {"1", "2"}) {
    const Outcome outcome = folder.run(
        kTrain + kSharded +
        Words{"--init-from-hf-path", "out", "--micro-batch-size", "2", "--global-batch-size", "4", "--train-iters", "1",
              "--lr", "1e-30", "--weight-decay", "0", "--metrics-path", "again.jsonl", "--nproc-per-node", ranks});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_NEAR(folder.metrics("again.jsonl").back().at("held_out_loss").get<double>(), saved.held_out_loss, 1e-6)
        << ranks;
  }
}

TEST(Save, IsReadBackByGenerateWhichIsGreedyAndRepeatable) {
  const ProgramFolder folder;
  four_steps(folder, "out", kTwoRanks);
  const Words generate{"generate", "out", "--prompt", "3 times", "--max-new-tokens", "9"};
  const Outcome first = folder.run(generate);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, StartsWith("3 times"));
  EXPECT_EQ(first.out.size(), std::string("3 times").size() + 9 + 1);  // and the end of the line
  EXPECT_EQ(folder.run(generate).out, first.out);
}

// --- Bad input: one line, exit status 2

class BadInput : public ::testing::Test {
 protected:
  void expect_refusal(const Words& arguments, const std::string& message) {
    const Outcome outcome = folder.run(arguments);
    EXPECT_EQ(outcome.err, "shardloom: " + message + "\n");
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_FALSE(std::filesystem::exists(folder.path("metrics.jsonl")))
        << "nothing is written before everything is checked";
  }
  // Two ranks with this text as fsdp2_config.yaml.
  void expect_refusal_of(const std::string& yaml, const std::string& message) {
    folder.write("fsdp2.yaml", yaml);
    expect_refusal(kFourSteps + kTwoRanks, message);
  }

  const ProgramFolder folder;
};

TEST_F(BadInput, ShardingFileIsMissing) {
  std::filesystem::remove(folder.path("fsdp2.yaml"));
  expect_refusal(kFourSteps + kTwoRanks,
                 "fsdp2.yaml: No such file or directory; give the path of an existing YAML file");
}

TEST_F(BadInput, ReportDeviceIsUnknown) {
  folder.write("devices/h200.yaml", "");
  setenv("SHARDLOOM_DEVICES", "devices", 1);
  expect_refusal(kFourSteps + kTwoRanks + Words{"--report", "report.html", "--report-device", "h20"},
                 "--report-device is h20, neither a file nor a profile in devices; did you mean h200? use one of h200");
  unsetenv("SHARDLOOM_DEVICES");
}

TEST_F(BadInput, ReportIsAFolder) {
  expect_refusal(kFourSteps + kTwoRanks + Words{"--report", "data"},
                 "--report: cannot write data: Is a directory; give the path of a file");
}

TEST_F(BadInput, ShardingFileIsNotYaml) {
  expect_refusal_of("sharding_size: [1\n",
                    "fsdp2.yaml:3:1: not readable as YAML (a [ is not closed with ]); check indentation, colons and "
                    "quotes here and in the line above");
}

TEST_F(BadInput, KeyIsUnknown) {
  expect_refusal_of("sharding_sise: 1\n", "fsdp2.yaml:1:1: unknown key 'sharding_sise'; did you mean sharding_size?");
}

TEST_F(BadInput, PatternMatchesNothing) {
  expect_refusal_of(
      "sub_modules_to_wrap: [\"model.layer.{*}\"]\n",
      "fsdp2.yaml:1:23: sub_modules_to_wrap: 'model.layer.{*}': there is no 'model.layer' in the model; the nearest "
      "path is 'model.layers'");
}

TEST_F(BadInput, ContainerIsListed) {
  expect_refusal_of(
      "sub_modules_to_wrap: [model.layers]\n",
      "fsdp2.yaml:1:23: sub_modules_to_wrap: 'model.layers' is a ModuleList and has no forward of its own; wrap its "
      "items: 'model.layers.{*}'");
}

TEST_F(BadInput, ShardingSizeDoesNotDivideTheRanks) {
  expect_refusal_of("sharding_size: 3\n",
                    "fsdp2.yaml:1:16: sharding_size is 3, but 2 ranks are running; use 1, 2 or auto (all ranks)");
}

TEST_F(BadInput, TiedWeightsWouldBeInTwoGroups) {
  std::string model = folder.read("model.yaml");
  model.replace(model.find("tie_word_embeddings: false"), 26, "tie_word_embeddings: true");
  folder.write("model.yaml", model);
  expect_refusal(
      kFourSteps + kTwoRanks,
      "fsdp2.yaml:2:22: sub_modules_to_wrap: 'model.embed_tokens.weight' (group 'model.embed_tokens') and "
      "'lm_head.weight' (group 'lm_head') are one parameter; a tie must stay inside one group: wrap neither module, "
      "wrap both as one group, or untie them (--untie-embeddings-and-output-weights, or tie_word_embeddings: false)");
}

TEST_F(BadInput, FlagIsUnknown) {
  expect_refusal(kFourSteps + Words{"--trian-iters", "3"}, "unknown flag --trian-iters; did you mean --train-iters?");
}

TEST_F(BadInput, BatchDoesNotDivide) {
  expect_refusal(kTrain + Words{"--model-config", "model.yaml", "--micro-batch-size", "3", "--global-batch-size", "8"} +
                     kSharded + kTwoRanks,
                 "--global-batch-size is 8, but --micro-batch-size 3 x 2 ranks needs a multiple of 6; use 6 or 12");
}

TEST_F(BadInput, ModelFileIsMissing) {
  std::filesystem::remove(folder.path("model.yaml"));
  expect_refusal(
      kFourSteps + kTwoRanks,
      "model.yaml: No such file or directory; give the path of a folder with config.json, a .json or a .yaml file");
}

TEST_F(BadInput, ModelKeyIsUnknown) {
  std::string model = folder.read("model.yaml");
  model.replace(model.find("hidden_size"), 11, "hiden_size");
  folder.write("model.yaml", model);
  expect_refusal(kFourSteps + kTwoRanks, "model.yaml:3:1: unknown key 'hiden_size'; did you mean 'hidden_size'?");
}

TEST_F(BadInput, DataIsEmpty) {
  std::filesystem::remove_all(folder.path("data"));
  std::filesystem::create_directories(folder.path("data"));
  expect_refusal(kFourSteps + kTwoRanks,
                 "--data-path 'data': no file that holds anything; give files, or folders with files");
}

TEST_F(BadInput, WeightsAreTruncated) {
  four_steps(folder, "out", kTwoRanks);
  std::filesystem::resize_file(folder.path("out/model.safetensors"), 3000);
  const Outcome outcome = folder.run(kTrain + Words{"--init-from-hf-path", "out"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.err,
            "shardloom: out/model.safetensors: tensor 'lm_head.weight': data_offsets [0, 16384] leave the file: 48704 "
            "bytes of data "
            "are promised, 320 are present; the file is truncated, fetch it again\n");
}

TEST_F(BadInput, WeightsAreOfAnotherModelThanConfigJson) {
  four_steps(folder, "out", kTwoRanks);
  auto config = nlohmann::json::parse(folder.read("out/config.json"));
  config["hidden_size"] = 32;
  folder.write("out/config.json", config.dump());
  const Outcome outcome = folder.run(kTrain + Words{"--init-from-hf-path", "out"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.err,
            "shardloom: out: tensor 'model.embed_tokens.weight': config.json says [256, 32], the safetensors file has "
            "[256, 16]; "
            "they are of different models\n");
}

TEST(Warning, OfAnIndexPastTheEndDoesNotStopTraining) {
  const ProgramFolder folder;
  folder.write("fsdp2.yaml", "sharding_size: auto\nsub_modules_to_wrap: [\"model.layers.{0-5}\"]\n");
  const Outcome outcome = folder.run(kFourSteps + kTwoRanks);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err,
            "warning: fsdp2.yaml:2:23: sub_modules_to_wrap: 'model.layers.{0-5}': 'model.layers' has 2 entries, 0 to "
            "1; 2-5 skipped\n");
}

}  // namespace
}  // namespace loom::test
