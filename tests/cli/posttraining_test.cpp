// Promise: reward models of outcomes and of processes learn the same on any number of ranks, go on where they stopped,
//          and leave as folders that they start from again; a file of reference log-probabilities stands for the
//          reference model to the bit, and the model's memory is not taken; what does not fit is said before anything
//          is built.
// World:   the built program; pairs and steps that `shardloom preprocess` wrote, a tokenizer of 2000 ids.
#include <gmock/gmock.h>

#include "engine/formats/safetensors/hf_weights.h"
#include "engine/formats/safetensors/safetensors.h"
#include "tests/support/checkpoints.h"
#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;

const std::string kTokenizer = LOOM_SOURCE_DIR "/tests/reference/sft/tokenizers/qwen2";
const std::string kPairs = LOOM_SOURCE_DIR "/tests/reference/sft/inputs/pair_alpaca.jsonl";

// Texts of one to five steps, each with a placeholder and a reward.
std::string steps_file() {
  std::string lines;
  for (int record = 0; record < 12; ++record) {
    std::string text;
    auto rewards = nlohmann::json::array();
    for (int step = 0; step <= record % 5; ++step) {
      text += fmt::format("{} and {} are {}<|im_end|>", record, step, record + step + (step % 2));
      rewards.push_back(step % 2 == 0 ? "+" : "-");
    }
    lines += nlohmann::json({{"input", text}, {"value", rewards}}).dump() + "\n";
  }
  return lines;
}

class PostTraining : public ::testing::Test {
 protected:
  PostTraining() {
    folder.write("tokens.yaml",
                 "model_type: qwen2\nvocab_size: 2048\nhidden_size: 16\nintermediate_size: 24\nnum_hidden_layers: 2\n"
                 "num_attention_heads: 2\nnum_key_value_heads: 1\nmax_position_embeddings: 256\nrms_norm_eps: 1.0e-6\n"
                 "tie_word_embeddings: false\n");
    folder.write("reward.yaml",
                 "sharding_size: auto\nsub_modules_to_wrap: [\"model.embed_tokens\", \"model.layers.{*}\"]\n");
    folder.write("steps.jsonl", steps_file());
    preprocess({"--input", kPairs, "--handler-name", "AlpacaStylePairwiseHandler", "--prompt-type", "qwen",
                "--output-prefix", "pairs"});
    preprocess({"--input", folder.path("steps.jsonl").string(), "--handler-name", "AlpacaStyleProcessRewardHandler",
                "--placeholder-token", "<|im_end|>", "--reward-tokens", "+", "-", "--output-prefix", "steps"});
  }
  void preprocess(const Words& words) const {
    const Outcome made = folder.run(Words{"preprocess", "--tokenizer-name-or-path", kTokenizer} + words);
    EXPECT_EQ(made.exit_code, 0) << made.err;
  }
  Outcome ends_well(const Words& words) const {
    Outcome outcome = folder.run(words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome;
  }
  std::string refused(const Words& words) const {
    const Outcome outcome = folder.run(words);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    return outcome.err;
  }
  // The figures of each step of a run, which must end well.
  using Steps = std::vector<nlohmann::ordered_json>;
  Steps steps_of(const Words& words, const std::string& metrics = "metrics.jsonl") const {
    ends_well(words + Words{"--metrics-path", metrics});
    return folder.metrics(metrics);
  }
  // Six steps of four samples.
  Words stage(const std::string& name, const std::string& data, const std::string& sharding = "fsdp2.yaml") const {
    return {"train",
            "--model-config",
            "tokens.yaml",
            "--data-path",
            data,
            "--split",
            "1,0,0",
            "--seq-length",
            "128",
            "--train-iters",
            "6",
            "--lr",
            "0.01",
            "--global-batch-size",
            "4",
            "--eval-iters",
            "0",
            "--stage",
            name,
            "--tokenizer-name-or-path",
            kTokenizer,
            "--use-torch-fsdp2",
            "--fsdp2-config-path",
            sharding,
            "--micro-batch-size",
            "1"};
  }
  static void expect_same(const Steps& other, const Steps& one) {
    ASSERT_EQ(other.size(), one.size());
    for (std::size_t i = 0; i < one.size(); ++i) {
      EXPECT_NEAR(other[i].at("loss"), one[i].at("loss"), 2e-6) << "step " << i;
      for (const auto& [name, value] : one[i].at("reports").items()) {
        EXPECT_NEAR(other[i].at("reports").at(name), value, 2e-6) << "step " << i << ", " << name;
      }
    }
  }
  void expect_same_on_ranks(const Words& words) const {
    const Steps one = steps_of(words + Words{"--nproc-per-node", "1"}, "one.jsonl");
    ASSERT_EQ(one.size(), 6U);
    EXPECT_LT(one.back().at("loss"), one.front().at("loss"));
    for (const char* ranks : {"2", "4"}) {
      SCOPED_TRACE(ranks);
      expect_same(steps_of(words + Words{"--nproc-per-node", ranks}, "other.jsonl"), one);
    }
  }
  // The run that stops after three steps and goes on ends as the one that does not.
  void expect_resumes(const Words& words) const {
    const auto whole = steps_of(words, "whole.jsonl");
    const Words saving = words + Words{"--save", "out", "--save-interval", "3"};
    ends_well(saving + Words{"--exit-interval", "3"});
    ends_well(saving + Words{"--load", "out"});
    const auto resumed = folder.metrics("out/metrics.jsonl");
    ASSERT_EQ(resumed.size(), whole.size());
    EXPECT_NEAR(resumed.back().at("loss"), whole.back().at("loss"), 1e-6);
  }

  const ProgramFolder folder;
};

// By SGD: Adam divides gradients near zero by their own size, and so makes much of the order of sums.
TEST_F(PostTraining, OfEveryStageIsTheSameWhereRanksShareMatrices) {
  for (const auto& [name, data, sharding] : {std::tuple{"orm", "pairs", "reward.yaml"},
                                             {"dpo", "pairs", "fsdp2.yaml"},
                                             {"simpo", "pairs", "fsdp2.yaml"},
                                             {"prm", "steps", "fsdp2.yaml"}}) {
    Words words = stage(name, data, sharding) + Words{"--optimizer", "sgd"};
    if (std::string_view(name) == "prm") words = words + Words{"--placeholder-token", "<|im_end|>"};
    const Steps one = steps_of(words + Words{"--nproc-per-node", "1"}, "one.jsonl");
    for (const char* more : {"", "sequence_parallel: true\n"}) {
      SCOPED_TRACE(fmt::format("{} {}", name, more));
      folder.write("shared.yaml", folder.read(sharding) + "tensor_parallel_size: 2\n" + more);
      const Words shared = with_value(words, "--fsdp2-config-path", "shared.yaml");
      expect_same(steps_of(shared + Words{"--nproc-per-node", "4"}, "other.jsonl"), one);
    }
  }
}

// --- outcomes

TEST_F(PostTraining, OfOutcomesIsTheSameOnAnyNumberOfRanksAndGoesOn) {
  const Words words = stage("orm", "pairs", "reward.yaml");
  expect_same_on_ranks(words);
  const auto reports = folder.metrics("one.jsonl").back().at("reports");
  for (const char* name : {"rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins"}) {
    EXPECT_TRUE(reports.contains(name)) << name;
  }
  EXPECT_GT(reports.at("rewards/margins"), 0.01);
  expect_resumes(words + Words{"--nproc-per-node", "2"});
}

TEST_F(PostTraining, OfOutcomesLeavesAFolderThatItStartsFromAgain) {
  const Words two = {"--nproc-per-node", "2"};
  const Words words = stage("orm", "pairs", "reward.yaml") + two;
  const auto learnt = steps_of(words + Words{"--save", "reward"}).back();
  const io::HfWeights saved(folder.path("reward"));
  EXPECT_EQ(saved.at("score.weight").shape, Shape({1, 16}));
  EXPECT_EQ(saved.find("lm_head.weight"), nullptr);
  const auto config = nlohmann::json::parse(folder.read("reward/config.json"));
  EXPECT_EQ(config.at("architectures").at(0), "Qwen2ForSequenceClassification");
  EXPECT_EQ(config.at("id2label").size(), 1U);
  EXPECT_EQ(config.at("pad_token_id"), 0);
  Words again = words;
  *std::find(again.begin(), again.end(), "--model-config") = "--init-from-hf-path";
  *std::find(again.begin(), again.end(), "tokens.yaml") = "reward";
  const auto on = steps_of(again).front();
  EXPECT_GT(on.at("reports").at("rewards/margins"), learnt.at("reports").at("rewards/margins").get<double>() / 2);
  // A checkpoint leaves as the same names.
  ends_well(words + Words{"--save", "dcp", "--save-interval", "6"});
  ends_well({"convert", "dcp-to-hf", "--load-dir", "dcp", "--save-dir", "converted", "--model-assets-dir", "reward"});
  const io::HfWeights converted(folder.path("converted"));
  EXPECT_EQ(converted.names(), saved.names());
  folder.write("assets/config.json", folder.read("reward/config.json"));
  ends_well({"convert", "dcp-to-hf", "--load-dir", "dcp", "--save-dir", "bare", "--model-assets-dir", "assets"});
  EXPECT_EQ(io::HfWeights(folder.path("bare")).names(), saved.names());
}

TEST_F(PostTraining, OfOutcomesTrainsAdaptersAndTheHead) {
  const Words words = stage("orm", "pairs", "reward.yaml") + Words{"--nproc-per-node", "2"};
  const Words lora = words + Words{"--lora-target-modules", "all-linear", "--lora-r", "2"};
  const Outcome made = ends_well(lora + Words{"--save", "adapters"});
  EXPECT_THAT(made.out, HasSubstr("with 1 trained whole"));
  const io::SafetensorsFile saved(folder.path("adapters/adapter_model.safetensors"));
  EXPECT_NE(saved.find("base_model.model.score.weight"), nullptr);
  EXPECT_EQ(nlohmann::json::parse(folder.read("adapters/adapter_config.json")).at("task_type"), "SEQ_CLS");
  expect_resumes(lora);
  ends_well(words + Words{"--lora-load", "adapters", "--train-iters", "1"});
}

TEST_F(PostTraining, OfOutcomesSaysWhatDoesNotFit) {
  const Words words = stage("orm", "pairs", "reward.yaml") + Words{"--nproc-per-node", "1"};
  EXPECT_THAT(refused(words + Words{"--sample-bytes", "8"}),
              HasSubstr("--sample-bytes is 8, and a model of --stage orm gives scores, not text; remove it"));
  EXPECT_THAT(refused(words + Words{"--neat-pack"}),
              HasSubstr("--neat-pack is of --stage sft and prm: pairs are not packed; remove it"));
  EXPECT_THAT(refused(words + Words{"--ref-model", "base"}),
              HasSubstr("--ref-model is of --stage dpo; add that, or remove it"));
  EXPECT_THAT(refused(words + Words{"--pref-ftx", "1"}),
              HasSubstr("--pref-ftx is of --stage dpo and simpo; add one, or remove it"));
  EXPECT_THAT(refused(with_value(words, "--stage", "sft") + Words{"--is-pairwise-dataset"}),
              HasSubstr("--is-pairwise-dataset is of --stage dpo, simpo and orm; add one, or remove it"));
  EXPECT_THAT(refused(with_value(words, "--fsdp2-config-path", "fsdp2.yaml")), HasSubstr("lm_head"));
}

// --- processes

TEST_F(PostTraining, OfProcessesIsTheSameOnAnyNumberOfRanksAndGoesOn) {
  const Words words = stage("prm", "steps") + Words{"--placeholder-token", "<|im_end|>", "--reward-tokens", "-", "+"};
  expect_same_on_ranks(words);
  const auto one = folder.metrics("one.jsonl");
  EXPECT_NEAR(one.front().at("loss"), std::log(2.0), 0.2);
  EXPECT_GT(one.back().at("reports").at("rewards/accuracies"), 0.4);
  // How samples are cut into micro-batches changes nothing either.
  const auto four = steps_of(with_value(words, "--micro-batch-size", "4") + Words{"--nproc-per-node", "1"});
  ASSERT_EQ(four.size(), one.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(four[i].at("loss"), one[i].at("loss"), 2e-6) << i;
    EXPECT_NEAR(four[i].at("reports").at("rewards/accuracies"), one[i].at("reports").at("rewards/accuracies"), 2e-6);
  }
  expect_resumes(words + Words{"--nproc-per-node", "2"});
}

TEST_F(PostTraining, OfProcessesWithoutRewardTokensIsOverTheWholeVocabulary) {
  const auto all = steps_of(stage("prm", "steps") + Words{"--nproc-per-node", "2", "--save", "prm"});
  EXPECT_NEAR(all.front().at("loss"), std::log(2048.0), 0.5);
  EXPECT_LT(all.back().at("loss"), all.front().at("loss"));
  EXPECT_NE(io::HfWeights(folder.path("prm")).find("lm_head.weight"), nullptr) << "a causal model";
}

TEST_F(PostTraining, OfProcessesSaysWhatDoesNotFit) {
  const Words words = stage("prm", "steps") + Words{"--nproc-per-node", "1"};
  EXPECT_THAT(refused(words + Words{"--reward-tokens", "+", "!"}),
              HasSubstr("is id 15, and --reward-tokens are the ids 13, 3; name it there, or preprocess with these "
                        "--reward-tokens"));
  EXPECT_THAT(
      refused(words + Words{"--placeholder-token", "!"}),
      HasSubstr("labels is at a --placeholder-token, id 3; give the token that the data was preprocessed with"));
  EXPECT_THAT(refused(words + Words{"--placeholder-token", "ки"}),
              HasSubstr("--placeholder-token: 'ки' is 4 tokens of the tokenizer in " + kTokenizer +
                        "; give a text that is one"));
  EXPECT_THAT(refused(with_value(words, "--stage", "sft") + Words{"--reward-tokens", "+"}),
              HasSubstr("--reward-tokens is of --stage prm; add that, or remove it"));
  EXPECT_THAT(
      refused(with_value(words, "--seq-length", "8")),
      HasSubstr("more than --seq-length 8, and is not cut; give --variable-seq-lengths, or preprocess with this "
                "--seq-length"));
}

TEST_F(PostTraining, RefusesALossMaskOfPretraining) {
  const Words words = stage("prm", "steps") + Words{"--nproc-per-node", "1", "--eod-mask-loss"};
  EXPECT_THAT(refused(words),
              HasSubstr("--eod-mask-loss is for pretraining: with --stage prm the labels of the data say "
                        "where the loss is; remove it"));
  Words same = with_value(words, "--data-path", "pairs");
  const auto at = std::find(same.begin(), same.end(), "--stage");
  same.erase(at, at + 2);
  EXPECT_THAT(refused(same + Words{"--is-instruction-dataset"}),
              HasSubstr("--eod-mask-loss is for pretraining: with --is-instruction-dataset the labels"));
}

// --- log-probabilities of the reference model from a file

class ReferenceCache : public PostTraining {
 protected:
  ReferenceCache() {
    Words base = with_value(stage("dpo", "pairs"), "--train-iters", "1");
    ends_well(base + Words{"--nproc-per-node", "1", "--save", "base"});
    ends_well(with_value(base, "--lr", "0.02") + Words{"--nproc-per-node", "1", "--save", "other"});
  }
  Words dpo(const std::string& ranks, const Words& more = {}) const {
    Words words = stage("dpo", "pairs");
    *std::find(words.begin(), words.end(), "--model-config") = "--init-from-hf-path";
    *std::find(words.begin(), words.end(), "tokens.yaml") = "base";
    return words + Words{"--nproc-per-node", ranks} + more;
  }
  static void expect_same_bits(const std::vector<nlohmann::ordered_json>& a,
                               const std::vector<nlohmann::ordered_json>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      for (const char* key : {"loss", "grad_norm", "reports"}) EXPECT_EQ(a[i].at(key), b[i].at(key)) << key << " " << i;
    }
  }
  // A rank's rows of every parameter of tokens.yaml in fp32, each a block of whole 512 bytes.
  static std::int64_t shard_bytes(std::int64_t ranks) {
    const std::vector<std::int64_t> of_layer = {16 * 16, 16,      8 * 16,  8,       8 * 16, 8,
                                                16 * 16, 24 * 16, 24 * 16, 16 * 24, 16,     16};
    std::vector<std::int64_t> parameters = {2048 * 16, 2048 * 16, 16};
    for (int layer = 0; layer < 2; ++layer) parameters.insert(parameters.end(), of_layer.begin(), of_layer.end());
    std::int64_t bytes = 0;
    for (const std::int64_t elements : parameters) bytes += (4 * elements / ranks + 511) / 512 * 512;
    return bytes;
  }
  const Words cached{"--ref-logps-cache", "logps.safetensors"};
};

TEST_F(ReferenceCache, StandsForTheModelBesideToTheBitAndInItsMemory) {
  for (const char* ranks : {"1", "2"}) {
    std::filesystem::remove(folder.path("logps.safetensors"));
    const auto beside = steps_of(dpo(ranks), "beside.jsonl");
    const Outcome computing = ends_well(dpo(ranks, cached) + Words{"--metrics-path", "computing.jsonl"});
    EXPECT_THAT(computing.out,
                HasSubstr("log-probabilities of the reference model for 9 pairs computed, and written to "
                          "logps.safetensors\n"));
    const std::string file = folder.read("logps.safetensors");
    const Outcome reading = ends_well(dpo(ranks, cached) + Words{"--metrics-path", "reading.jsonl"});
    EXPECT_THAT(reading.out,
                HasSubstr("log-probabilities of the reference model for 9 pairs read from logps.safetensors\n"));
    EXPECT_EQ(folder.read("logps.safetensors"), file);
    expect_same_bits(folder.metrics("computing.jsonl"), beside);
    expect_same_bits(folder.metrics("reading.jsonl"), beside);
    const auto parameters = [](const std::vector<nlohmann::ordered_json>& steps) {
      return steps.back().at("peak_memory_bytes").at("shard").get<std::int64_t>();
    };
    const std::int64_t shards = shard_bytes(std::stoi(ranks));
    EXPECT_EQ(parameters(beside), 2 * shards);
    EXPECT_EQ(parameters(folder.metrics("computing.jsonl")), shards);
    EXPECT_EQ(parameters(folder.metrics("reading.jsonl")), shards);
  }
}

TEST_F(ReferenceCache, IsOfAllPairsWhateverPartsAndOrderARunDraws) {
  ends_well(with_value(dpo("2", cached), "--train-iters", "1"));
  Words evaluated = with_value(with_value(dpo("1"), "--split", "60,40,0"), "--eval-iters", "1");
  evaluated = with_value(with_value(evaluated, "--micro-batch-size", "2"), "--train-iters", "3");
  const auto beside = steps_of(evaluated, "beside.jsonl");
  const Outcome read = ends_well(evaluated + cached + Words{"--metrics-path", "read.jsonl"});
  EXPECT_THAT(read.out, HasSubstr("9 pairs read from"));
  const auto with = folder.metrics("read.jsonl");
  ASSERT_EQ(with.size(), beside.size());
  for (std::size_t i = 0; i < with.size(); ++i) EXPECT_NEAR(with[i].at("loss"), beside[i].at("loss"), 1e-6);
  EXPECT_NEAR(with.back().at("held_out_loss"), beside.back().at("held_out_loss"), 1e-6);
}

TEST_F(ReferenceCache, IsRefusedWhereItDoesNotFit) {
  ends_well(with_value(dpo("1", cached), "--train-iters", "1"));
  EXPECT_THAT(
      refused(dpo("2", cached) + Words{"--ref-model", "other"}),
      HasSubstr("--ref-logps-cache logps.safetensors: its log-probabilities were computed from something else: the "
                "reference weights: "));
  EXPECT_THAT(refused(with_value(dpo("1", cached), "--seq-length", "136")),
              HasSubstr("computed from something else: --seq-length: 128 there, 136 here; give another name, or remove "
                        "the file so that it is computed anew"));
  preprocess({"--input", kPairs, "--handler-name", "AlpacaStylePairwiseHandler", "--prompt-type", "default",
              "--output-prefix", "others"});
  EXPECT_THAT(refused(with_value(dpo("2", cached), "--data-path", "others")), HasSubstr("something else: the data: "));
  folder.write("broken", "no file of ours");
  EXPECT_THAT(refused(dpo("2", {"--ref-logps-cache", "broken"})), HasSubstr("broken"));
  EXPECT_THAT(refused(dpo("1", {"--ref-logps-cache", "base/model.safetensors"})),
              HasSubstr("base/model.safetensors: the file is none of reference log-probabilities"));
  EXPECT_THAT(refused(with_value(dpo("1", cached), "--stage", "simpo")),
              HasSubstr("--ref-logps-cache is of --stage dpo; add that, or remove it"));
}

TEST_F(ReferenceCache, LeavesTheReferenceOutOfAPlanToo) {
  const auto shards = [&](const Words& more) {
    Words plan = dpo("2", more + Words{"--json", "plan.json"});
    plan.front() = "plan";
    ends_well(plan);
    const auto phase = nlohmann::json::parse(folder.read("plan.json")).at("memory").at("phases").at(0);
    return phase.at("by_category_at_peak").at("shard_bytes").get<std::int64_t>();
  };
  EXPECT_EQ(shards({}), 2 * shard_bytes(2));
  EXPECT_EQ(shards(cached), shard_bytes(2));
  EXPECT_FALSE(std::filesystem::exists(folder.path("logps.safetensors")));
}

// Pairs and process rewards have an epoch too, whose length no tokenizer says.
TEST_F(PostTraining, AnEpochIsCounted) {
  for (const auto& [name, data] : {std::pair("orm", "pairs"), std::pair("prm", "steps")}) {
    Words words = stage(name, data, std::string(name) == "orm" ? "reward.yaml" : "fsdp2.yaml");
    const auto iterations = std::ranges::find(words, "--train-iters");
    *iterations = "--train-epochs", *std::next(iterations) = "1";
    if (std::string(name) == "prm")
      words = words + Words{"--placeholder-token", "<|im_end|>", "--reward-tokens", "+", "-"};
    const std::size_t steps = steps_of(words + Words{"--tokenizer-name-or-path", kTokenizer}).size();
    EXPECT_GE(steps, 2U) << name;
    EXPECT_LE(steps, 3U) << name;  // at most 12 samples, four a step
    std::filesystem::remove_all(folder.path("metrics.jsonl"));
  }
}

}  // namespace
}  // namespace loom::test
