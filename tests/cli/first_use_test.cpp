// Promise: what a newcomer does first works: the help's examples, presets by name, a single file, evaluation alone, a
//          published folder that comes back as it was; and what cannot be done says what to write.
// World:   the built program; tiny models; one and two ranks as threads.
#include <cstring>
#include <gmock/gmock.h>

#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

class FirstUse : public ::testing::Test {
 protected:
  void expect_refusal(const Words& words, const std::string& text) const {
    const Outcome outcome = folder.run(words);
    EXPECT_EQ(outcome.err, "shardloom: " + text + "\n");
    EXPECT_EQ(outcome.exit_code, 2);
  }
  Outcome done(const Words& words) const {
    Outcome outcome = folder.run(words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome;
  }
  // A folder with a trained model; further flags may be given.
  void make_model(const std::string& name, const Words& more = {}) const {
    done(kTrain + Words{"--model-config", "model.yaml", "--train-iters", "1", "--save", name} + more);
  }
  Json header(const std::string& name) const {
    const std::string file = folder.read(name);
    std::uint64_t size = 0;
    std::memcpy(&size, file.data(), sizeof(size));
    return Json::parse(file.substr(8, size));
  }
  std::string dtype(const std::string& name) const {
    return header(name + "/model.safetensors").at("lm_head.weight").at("dtype");
  }

  const ProgramFolder folder;
};

// --- The help's examples and presets

TEST_F(FirstUse, TheHelpsExamplesRun) {
  std::string text;
  for (int line = 0; line < 2000; ++line) text += fmt::format("{} and {} is {}.\n", line, line, 2 * line);
  folder.write("corpus.txt", text);
  const Words smaller{"--seq-length", "16", "--train-iters", "1"};  // the last of a repeated flag counts
  EXPECT_THAT(
      folder.run({"--help"}).out,
      HasSubstr("shardloom train --model-config quickstart --data-path corpus.txt --train-iters 20 --save out\n"));
  done(Words{"train", "--model-config", "quickstart", "--data-path", "corpus.txt", "--train-iters", "20", "--save",
             "out"} +
       smaller);
  EXPECT_THAT(folder.run({"train", "--help"}).out,
              HasSubstr("--model-config quickstart --data-path corpus.txt --nproc-per-node 2 \\\n"
                        "    --use-torch-fsdp2 --fsdp2-config-path quickstart --train-iters 200 --save out\n"));
  done(Words{"train", "--model-config", "quickstart", "--data-path", "corpus.txt", "--nproc-per-node", "2",
             "--use-torch-fsdp2", "--fsdp2-config-path", "quickstart", "--train-iters", "200", "--save", "out"} +
       smaller);
  const Outcome text_of = done({"generate", "out", "--prompt", "1 and", "--max-new-tokens", "4"});
  EXPECT_TRUE(text_of.out.starts_with("1 and")) << text_of.out;
  EXPECT_THAT(done({"plan", "--model-config", "llama3_8b", "--use-torch-fsdp2", "--fsdp2-config-path", "full_shard",
                    "--world-size", "64", "--device", "h200", "--seq-length", "8192"})
                  .out,
              HasSubstr("64"));
}

TEST_F(FirstUse, AnUnknownPresetNamesTheNearest) {
  const Outcome outcome = folder.run({"train", "--model-config", "lama3_8b", "--data-path", "data"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--model-config is lama3_8b, neither a file nor a preset; did you mean llama3_8b? "
                                     "presets are deepseek_v3, "));
}

TEST_F(FirstUse, AShareFolderWithoutConfigsIsRefused) {
  const Outcome outcome =
      folder.run({"train", "--model-config", "quickstart", "--data-path", "data"}, {"env", "SHARDLOOM_SHARE=nowhere"});
  EXPECT_EQ(outcome.err,
            "shardloom: SHARDLOOM_SHARE is nowhere, where no folder configs is; name the share/shardloom of an "
            "installation\n");
  EXPECT_EQ(outcome.exit_code, 2);
}

// --- Which of the shipped files fits

TEST_F(FirstUse, ATiedModelIsTrainedByItsFileAndTheErrorSaysWhich) {
  std::string model = folder.read("model.yaml");
  model.replace(model.find("tie_word_embeddings: false"), 26, "tie_word_embeddings: true");
  folder.write("tied.yaml", model);
  const Words run = kTrain + Words{"--model-config",   "tied.yaml", "--train-iters",     "1",
                                   "--nproc-per-node", "2",         "--use-torch-fsdp2", "--fsdp2-config"};
  const Outcome refused = folder.run(run + Words{"full_shard"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(
      refused.err,
      HasSubstr(
          "are one parameter; a tie must stay inside one group: wrap neither module, wrap both as one group, or untie "
          "them (--untie-embeddings-and-output-weights, or tie_word_embeddings: false); of "
          "the files in configs/fsdp2, full_shard_tied fits Qwen2ForCausalLM on 2 ranks\n"));
  done(run + Words{"full_shard_tied"});
}

TEST_F(FirstUse, Gpt2IsTrainedByItsFileAndTheErrorSaysWhich) {
  folder.write("gpt2.yaml",
               "model_type: gpt2\nvocab_size: 256\nn_embd: 16\nn_layer: 2\nn_head: 2\nn_positions: 32\n"
               "attn_pdrop: 0.0\nembd_pdrop: 0.0\nresid_pdrop: 0.0\n");
  const Words run = kTrain + Words{"--model-config",   "gpt2.yaml", "--train-iters",     "1",
                                   "--nproc-per-node", "2",         "--use-torch-fsdp2", "--fsdp2-config"};
  const Outcome refused = folder.run(run + Words{"full_shard"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err,
              HasSubstr("; of the files in configs/fsdp2, full_shard_gpt2 fits GPT2LMHeadModel on 2 ranks\n"));
  done(run + Words{"full_shard_gpt2"});
}

TEST_F(FirstUse, TheShippedPresetsPlanTheShippedModelWithoutAPrefetchOutOfOrder) {
  for (const char* preset : {"quickstart", "full_shard", "hybrid", "zero2", "offload"}) {
    const Outcome outcome = done({"plan", "--model-config", "quickstart", "--use-torch-fsdp2", "--fsdp2-config", preset,
                                  "--world-size", "16", "--json", "-"});
    const auto plan = nlohmann::json::parse(outcome.out);
    EXPECT_THAT(plan.at("warnings").dump(), Not(HasSubstr("out of order"))) << preset;
  }
}

TEST_F(FirstUse, AFileOfTheUsersOwnGetsNoAdviceOnOurs) {
  folder.write("fsdp2.yaml", "sharding_size: auto\nsub_modules_to_wrap: [model.layer]\n");
  EXPECT_THAT(folder.run(kFourSteps).err, Not(HasSubstr("configs/fsdp2")));
}

// --- Evaluation alone

TEST_F(FirstUse, SkipTrainEvaluatesWhatTrainingDid) {
  make_model("out", {"--lr", "0.01", "--metrics-path", "trained.jsonl"});
  const Outcome outcome = done(kTrain + Words{"--init-from-hf-path", "out", "--skip-train"});
  const auto lines = folder.metrics("metrics.jsonl");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].at("step"), 0);
  EXPECT_EQ(lines[0].at("held_out_loss"), folder.metrics("trained.jsonl").back().at("held_out_loss"));
  EXPECT_THAT(outcome.out, HasSubstr(fmt::format("\nheld-out loss {:.4f} nats per byte\n",
                                                 lines[0].at("held_out_loss").get<double>())));
  EXPECT_THAT(outcome.out, Not(HasSubstr("step ")));
}

TEST_F(FirstUse, SkipTrainNeedsDataToEvaluate) {
  expect_refusal({"train", "--model-config", "model.yaml", "--data-path", "data", "--seq-length", "16", "--skip-train",
                  "--held-out-fraction", "0"},
                 "--skip-train evaluates only, but there is no data for it; give --held-out-fraction above 0 (text), "
                 "--valid-data-path or a larger share in --split (.bin/.idx pairs), or a valid or test loader");
}

// --- A published folder

TEST_F(FirstUse, AFolderWithATokenizerIsNotReadAsBytesUnlessAskedFor) {
  make_model("out");
  folder.write("out/tokenizer.json", "{}");
  folder.write("out/tokenizer_config.json", "{\"a\": 1}");
  const std::string refused =
      "out has a tokenizer (tokenizer.json), and {} would be read as bytes, 0 to 255, which are other tokens of this "
      "model; {}add --bytes-as-tokens if that is meant";
  const Words train = kTrain + Words{"--init-from-hf-path", "out", "--train-iters", "1", "--save", "again"};
  expect_refusal(train,
                 fmt::format(fmt::runtime(refused), "the data", "make token ids of it with shardloom preprocess, or "));
  EXPECT_FALSE(std::filesystem::exists(folder.path("again")));
  done(train + Words{"--bytes-as-tokens"});
  EXPECT_EQ(folder.read("again/tokenizer.json"), "{}");  // carried along
  EXPECT_EQ(folder.read("again/tokenizer_config.json"), "{\"a\": 1}");
  done({"generate", "again", "--prompt", "a", "--max-new-tokens", "1", "--bytes-as-tokens"});
}

TEST_F(FirstUse, ATokenizerThatIsNotReadIsRefusedByGenerate) {
  make_model("out");
  folder.write("out/tokenizer.model", "x");
  expect_refusal(
      {"generate", "out", "--prompt", "a"},
      "out has a tokenizer (tokenizer.model), and the prompt would be read as bytes, 0 to 255, which are other "
      "tokens of this model; add --bytes-as-tokens if that is meant");
}

TEST_F(FirstUse, ABf16FolderComesBackAsBf16UnlessAskedOtherwise) {
  make_model("fp32");
  EXPECT_EQ(dtype("fp32"), "F32");
  make_model("bf16", {"--save-dtype", "bf16"});
  EXPECT_EQ(dtype("bf16"), "BF16");
  EXPECT_EQ(Json::parse(folder.read("bf16/config.json")).at("torch_dtype"), "bfloat16");
  const auto again = [&](const std::string& from, const std::string& to, const Words& more) {
    return done(kTrain + Words{"--init-from-hf-path", from, "--train-iters", "1", "--save", to} + more).out;
  };
  EXPECT_THAT(again("bf16", "again", {}),
              HasSubstr("weights of bf16: 27 tensors, bf16; trained in fp32, --save writes bf16\n"));
  EXPECT_EQ(dtype("again"), "BF16");
  EXPECT_EQ(Json::parse(folder.read("again/config.json")), Json::parse(folder.read("bf16/config.json")));
  EXPECT_THAT(again("bf16", "wide", {"--save-dtype", "fp32"}), HasSubstr("trained in fp32, --save writes fp32\n"));
  EXPECT_EQ(dtype("wide"), "F32");
  EXPECT_EQ(Json::parse(folder.read("wide/config.json")).at("torch_dtype"), "float32");
  EXPECT_THAT(again("fp32", "same", {}),
              HasSubstr("weights of fp32: 27 tensors, fp32; trained in fp32, --save writes fp32\n"));
}

TEST_F(FirstUse, ConfigJsonKeepsItsKeysAndTheirOrder) {
  make_model("out");
  Json config = {{"bos_token_id", 7}, {"_name_or_path", "me/mine"}};
  const Json saved = Json::parse(folder.read("out/config.json"));
  for (const auto& [key, value] : saved.items()) config[key] = value;
  config["use_cache"] = true;
  folder.write("out/config.json", config.dump(4));
  done(kTrain + Words{"--init-from-hf-path", "out", "--train-iters", "1", "--save", "again"});
  EXPECT_EQ(folder.read("again/config.json"), config.dump(4));
  folder.write("fresh.json", config.dump());  // a shape without weights
  done(kTrain + Words{"--model-config", "fresh.json", "--train-iters", "1", "--save", "fresh"});
  EXPECT_EQ(Json::parse(folder.read("fresh/config.json")).at("_name_or_path"), "me/mine");
}

}  // namespace
}  // namespace loom::test
