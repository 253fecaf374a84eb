// Promise: what a run saved is read by every command that takes a checkpoint, also of a model whose output layer is its
//          embedding: resumed as if the run had not ended, inspected, cut for other ranks, exported, fine-tuned.
// World:   the built program; a tiny model of each kind.
#include <gmock/gmock.h>

#include "tests/support/checkpoints.h"
#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Family {
  std::string_view name;
  std::string_view config;  // config.json; of a rotary decoder its beginning
  std::string_view layers;  // of the sharding file
};

constexpr const char* kRotary = R"("vocab_size": 256, "hidden_size": 16, "intermediate_size": 24,
  "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32,
  "rms_norm_eps": 1e-6, "tie_word_embeddings": true})";

const Family kQwen2{"qwen2", R"({"model_type": "qwen2", )", "model.layers.{*}"};
const Family kLlama{"llama", R"({"model_type": "llama", )", "model.layers.{*}"};
const Family kGpt2{"gpt2",
                   R"({"model_type": "gpt2", "vocab_size": 256, "n_embd": 16, "n_layer": 2, "n_head": 2,
  "n_positions": 32, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0})",
                   "transformer.h.{*}"};

void PrintTo(const Family& family, std::ostream* out) { *out << family.name; }

class Tied : public ::testing::TestWithParam<Family> {
 protected:
  Tied() {
    folder.write("model/config.json", fmt::format("{}{}", GetParam().config, GetParam().name == "gpt2" ? "" : kRotary));
    folder.write("layers.yaml", fmt::format("sharding_size: auto\nsub_modules_to_wrap: [\"{}\"]\n", GetParam().layers));
  }

  static Words training(const std::string& ranks, const std::string& steps) {
    return kTrain + Words{"--model-config",
                          "model",
                          "--use-torch-fsdp2",
                          "--fsdp2-config-path",
                          "layers.yaml",
                          "--lr",
                          "0.01",
                          "--lr-decay-iters",
                          "6",
                          "--micro-batch-size",
                          "2",
                          "--global-batch-size",
                          "4",
                          "--nproc-per-node",
                          ranks,
                          "--train-iters",
                          steps};
  }
  std::string done(const Words& words) const {
    const Outcome outcome = folder.run(words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    EXPECT_THAT(outcome.err, Not(HasSubstr("passed over")));
    return outcome.out;
  }

  const ProgramFolder folder;
};

TEST_P(Tied, GoesOnAsIfTheRunHadNotEnded) {
  const Words saving{"--save-interval", "4", "--save"};
  done(training("2", "6") + saving + Words{"whole"});
  done(training("2", "4") + saving + Words{"out"});
  done(training("2", "6") + saving + Words{"out", "--load", "out"});
  expect_same_checkpoint(folder.path("out"), folder.path("whole"), 6);
  done(training("1", "6") + saving + Words{"one", "--load", "out", "--ckpt-step", "4"});
  done(training("2", "2") + saving + Words{"tuned", "--load", "out", "--finetune"});
}

TEST_P(Tied, IsWholeAndKeepsItsBytesOnceForOtherRanks) {
  done(training("2", "4") + Words{"--save-interval", "4", "--save", "out"});
  EXPECT_THAT(done({"inspect", "out"}), Not(HasSubstr("DAMAGED")));
  std::filesystem::remove(folder.path("out/iter_0000004/shardloom_manifest.json"));
  EXPECT_THAT(done({"inspect", "out"}), Not(HasSubstr("DAMAGED")));
  done({"convert", "dcp-to-dcp", "--load-dir", "out", "--save-dir", "three", "--world-size", "3"});
  done({"inspect", "--diff", "out", "three"});
  EXPECT_THAT(done(training("1", "6") + Words{"--load", "three"}), HasSubstr("at iteration 4\n"));
}

TEST_P(Tied, IsExportedAndMakesTheSameText) {
  done(training("2", "4") + Words{"--save-interval", "4", "--save", "out"});
  done(training("2", "4") + Words{"--save", "trained"});
  done({"convert", "dcp-to-hf", "--load-dir", "out", "--save-dir", "hf", "--model-assets-dir", "model"});
  EXPECT_THAT(folder.read("hf/model.safetensors"), Not(HasSubstr("\"lm_head.weight\"")));
  done({"inspect", "--diff", "trained", "hf"});
  const Words prompt{"--prompt", "1 times", "--max-new-tokens", "8"};
  EXPECT_EQ(done(Words{"generate", "hf"} + prompt), done(Words{"generate", "trained"} + prompt));
}

TEST_P(Tied, TrainedUntiedIsExportedAsTwoTensorsAndReadBack) {
  done(training("2", "2") + Words{"--save", "base"});
  const auto from = [](const Words& words, const std::string& model) {
    Words changed = with_value(words, "--model-config", model);
    *std::find(changed.begin(), changed.end(), "--model-config") = "--init-from-hf-path";
    return changed;
  };
  const Words untied{"--untie-embeddings-and-output-weights"};
  done(from(training("2", "4"), "base") + untied + Words{"--save-interval", "4", "--save", "out"});
  done({"convert", "dcp-to-hf", "--load-dir", "out", "--save-dir", "hf", "--model-assets-dir", "base"});
  EXPECT_THAT(folder.read("base/config.json"), Not(HasSubstr("\"tie_word_embeddings\": false")));
  EXPECT_THAT(folder.read("hf/config.json"), HasSubstr("\"tie_word_embeddings\": false"));
  done({"generate", "hf", "--prompt", "1 times", "--max-new-tokens", "8"});
  const Words evaluate = training("2", "4") + Words{"--skip-train", "--metrics-path"};
  done(from(evaluate, "base") + Words{"run.jsonl", "--load", "out"} + untied);
  done(from(evaluate, "hf") + Words{"exported.jsonl"});
  EXPECT_EQ(folder.metrics("exported.jsonl").at(0).at("held_out_loss"),
            folder.metrics("run.jsonl").at(0).at("held_out_loss"));
}

INSTANTIATE_TEST_SUITE_P(All, Tied, ::testing::Values(kQwen2, kLlama, kGpt2), ::testing::PrintToStringParamName());

// --- A loss scale that still falls: no update was made, so the optimizer has no state

TEST(LossScale, ThatStillFallsIsResumedBitForBitOnAnyRanks) {
  const ProgramFolder folder;
  folder.write("fsdp2.yaml", folder.read("fsdp2.yaml") + "param_dtype: fp16\nreduce_dtype: fp32\n");
  const auto run = [&](const std::string& ranks, const std::string& steps, const Words& more) {
    const Words words = with_value(kFourSteps, "--train-iters", steps) +
                        Words{"--fp16", "--lr-decay-iters", "30", "--nproc-per-node", ranks, "--save-interval", "4"};
    const Outcome outcome = folder.run(words + more);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  };
  run("2", "30", {"--save", "whole", "--metrics-path", "whole.jsonl"});
  run("2", "4", {"--save", "out"});
  run("2", "30", {"--save", "again", "--load", "out"});
  expect_same_checkpoint(folder.path("again"), folder.path("whole"), 30);
  // It had to be made of both kinds of steps.
  const auto steps = folder.metrics("whole.jsonl");
  EXPECT_TRUE(steps.at(3).contains("skipped"));
  EXPECT_FALSE(steps.back().contains("skipped"));
  run("1", "30", {"--save", "one"});
  run("1", "30", {"--save", "one_of_two", "--load", "out"});
  const Outcome difference = folder.run({"inspect", "--diff", "one", "one_of_two"});
  EXPECT_EQ(difference.exit_code, 0) << difference.out;
}

}  // namespace
}  // namespace loom::test
