// Promise: pretrain_transformers trains the model of any Hugging Face folder and saves one it starts from again.
// World:   the built example; the reference folders; two ranks as threads; README.md as text.
#include <cmath>
#include <gmock/gmock.h>

#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;

const std::string kSource = LOOM_SOURCE_DIR;
const Words kSteps{"--data-path",
                   kSource + "/README.md",
                   "--held-out-fraction",
                   "0",
                   "--seq-length",
                   "32",
                   "--micro-batch-size",
                   "2",
                   "--nproc_per_node",
                   "2",
                   "--lr",
                   "1e-3",
                   "--use-torch-fsdp2",
                   "--fsdp2-config-path",
                   "fsdp2.yaml"};

struct Folder {
  std::string path;    // below tests/reference
  std::string layers;  // what its YAML wraps
};

void PrintTo(const Folder& folder, std::ostream* out) { *out << folder.path; }

class AnyFolder : public ::testing::TestWithParam<Folder> {};

TEST_P(AnyFolder, IsTrainedAndSavedAsAFolderToStartFrom) {
  const ProgramFolder folder;
  folder.write("fsdp2.yaml", "sharding_size: auto\nsub_modules_to_wrap: ['" + GetParam().layers + "']\n");
  const std::string reference = kSource + "/tests/reference/" + GetParam().path;
  const auto losses = [&](const Words& more) {
    const Outcome outcome = folder.run(kSteps + more + Words{"--metrics-path", "metrics.jsonl"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::vector<double> found;
    for (const auto& line : folder.metrics("metrics.jsonl")) found.push_back(line.at("loss"));
    return found;
  };
  const auto trained = losses({"--init-from-hf-path", reference, "--train-iters", "12", "--save", "out"});
  ASSERT_EQ(trained.size(), 12u);
  EXPECT_LT(trained.back(), trained.front() - 0.2);
  const auto again = losses({"--init-from-hf-path", "out", "--train-iters", "1"});
  ASSERT_EQ(again.size(), 1u);
  EXPECT_LT(again[0], trained[0] - 0.2);  // the text of the first step, after training
  const auto fresh = losses({"--config", "out/config.json", "--train-iters", "1"});
  ASSERT_EQ(fresh.size(), 1u);
  EXPECT_NEAR(fresh[0], std::log(256), 0.5);
}

INSTANTIATE_TEST_SUITE_P(Reference, AnyFolder,
                         ::testing::Values(Folder{"logits/gpt2", "transformer.h.{*}"},
                                           Folder{"logits/llama", "model.layers.{*}"},
                                           Folder{"logits/qwen2", "model.layers.{*}"},
                                           Folder{"training/qwen3moe_w2", "model.layers.{*}"},
                                           Folder{"training/internvl_w2", "text_decoder.decoder.layers.{*}"}));

TEST(LaunchScript, OfNpusTrainsOnAsManyRanks) {
  const ProgramFolder folder;
  const std::string program = SHARDLOOM_PROGRAM;
  const Outcome outcome =
      folder.run_command({"env", "PROGRAM=" + program, "HF_PATH=" + kSource + "/tests/reference/training/qwen2_w4_fp32",
                          "DATA_PATH=" + kSource + "/README.md", "NPUS_PER_NODE=4", "TRAIN_ITERS=3", "SAVE_PATH=out",
                          "bash", kSource + "/examples/pretrain_transformers/pretrain.sh", "--held-out-fraction", "0"});
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("Qwen2ForCausalLM of "));
  EXPECT_THAT(outcome.out, HasSubstr("on 4 ranks"));
  EXPECT_EQ(folder.metrics("out/metrics.jsonl").size(), 3u);
}

TEST(PretrainTransformers, NeedsOneModel) {
  const ProgramFolder folder;
  const std::string message =
      "pretrain_transformers: give one of --init-from-hf-path DIR (its weights) and --config DIR (fresh ones)\n";
  EXPECT_EQ(folder.run({"--data-path", "data"}).err, message);
  EXPECT_EQ(folder.run({"--data-path", "data", "--config", "a", "--init-from-hf-path", "b"}).err, message);
}

TEST(AModelWithoutAFolder, IsSavedWithItsConfiguration) {
  const ProgramFolder folder;
  folder.write("fsdp2.yaml", "sharding_size: auto\nsub_modules_to_wrap: ['model.layers.{*}']\n");
  const std::string given = kSource + "/tests/reference/training/qwen2_w4_fp32/config.json";
  const Outcome outcome = folder.run(kSteps + Words{"--config", given, "--train-iters", "1", "--save", "out"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(folder.read("out/config.json")), nlohmann::json::parse(read_file(given)));
}

TEST(AFolderWithATokenizer, IsReadAsBytesOnlyWhereThatIsAskedForAndKeepsItsTokenizer) {
  const ProgramFolder folder;
  folder.write("fsdp2.yaml", "sharding_size: auto\nsub_modules_to_wrap: ['model.layers.{*}']\n");
  std::filesystem::copy(kSource + "/tests/reference/training/qwen2_w4_fp32", folder.path("model"));
  folder.write("model/vocab.json", "{}");
  folder.write("model/merges.txt", "a b");
  const Words run = kSteps + Words{"--init-from-hf-path", "model", "--train-iters", "1", "--save", "out"};
  const Outcome refused = folder.run(run);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("model has a tokenizer (merges.txt, vocab.json), and the data would be read as "
                                     "bytes"));
  EXPECT_EQ(folder.run(run + Words{"--bytes-as-tokens"}).exit_code, 0);
  EXPECT_EQ(folder.read("out/merges.txt"), "a b");
  EXPECT_EQ(folder.read("out/vocab.json"), "{}");
}

}  // namespace
}  // namespace loom::test
