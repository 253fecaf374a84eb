// Promise: the launch flags of the FSDP2 route do to a model what they do to the real one.
// World:   the built program; 4 steps of a tiny model; two ranks as threads.
#include <algorithm>
#include <cstring>
#include <gmock/gmock.h>

#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;

const Words kTwoRanks{"--nproc-per-node", "2"};

class LaunchFlags : public ::testing::Test {
 protected:
  LaunchFlags() {
    std::string model = folder.read("model.yaml");
    model.replace(model.find("tie_word_embeddings: false"), 26, "tie_word_embeddings: true");
    folder.write("tied.yaml", model);
  }
  // A folder with the tied model after 4 steps, in one group.
  void save_tied(const std::string& name) {
    folder.write("layers.yaml", "sharding_size: auto\nsub_modules_to_wrap: [\"model.layers.{*}\"]\n");
    train(Words{"--use-torch-fsdp2", "--fsdp2-config-path", "layers.yaml", "--model-config", "tied.yaml",
                "--train-iters", "4", "--lr", "0.01", "--save", name});
  }
  // One step that changes nothing; returns its loss.
  double loss_of(const Words& more) {
    train(more + Words{"--train-iters", "1", "--lr", "1e-30", "--weight-decay", "0", "--metrics-path", "again.jsonl"});
    return folder.metrics("again.jsonl").back().at("loss");
  }
  void train(const Words& more) {
    const Outcome outcome = folder.run(kTrain + kTwoRanks + more);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  }
  // The fp32 values of a model.safetensors.
  std::vector<float> values(const std::string& name) const {
    const std::string file = folder.read(name);
    std::uint64_t header = 0;
    std::memcpy(&header, file.data(), sizeof(header));
    std::vector<float> floats((file.size() - 8 - header) / sizeof(float));
    std::memcpy(floats.data(), file.data() + 8 + header, floats.size() * sizeof(float));
    return floats;
  }

  const ProgramFolder folder;
};

TEST_F(LaunchFlags, UntiedWeightsAreCopiedAndTheSavedConfigSaysUntied) {
  save_tied("tied");
  EXPECT_THAT(folder.read("tied/config.json"), HasSubstr("\"tie_word_embeddings\": true"));
  EXPECT_THAT(folder.read("tied/model.safetensors"), ::testing::Not(HasSubstr("lm_head.weight")));
  const Words from_tied{"--init-from-hf-path", "tied", "--use-torch-fsdp2", "--fsdp2-config-path"};
  const double tied = loss_of(from_tied + Words{"layers.yaml"});
  const double untied =
      loss_of(from_tied + Words{"fsdp2.yaml", "--untie-embeddings-and-output-weights", "--save", "untied"});
  EXPECT_EQ(untied, tied);
  EXPECT_THAT(folder.read("untied/config.json"), HasSubstr("\"tie_word_embeddings\": false"));
  EXPECT_THAT(folder.read("untied/model.safetensors"), HasSubstr("lm_head.weight"));
  EXPECT_EQ(loss_of(kSharded + Words{"--init-from-hf-path", "untied"}), tied);
}

TEST_F(LaunchFlags, UntyingAModelWithoutTieChangesNothing) {
  const Words run = kSharded + Words{"--model-config", "model.yaml"};
  EXPECT_EQ(loss_of(run + Words{"--untie-embeddings-and-output-weights"}), loss_of(run));
}

TEST_F(LaunchFlags, DowncastRoundsEveryLoadedWeightToBf16AndKeepsItFp32) {
  save_tied("full");
  train(kSharded + Words{"--init-from-hf-path", "full", "--untie-embeddings-and-output-weights", "--downcast-to-bf16",
                         "--train-iters", "1", "--lr", "1e-30", "--weight-decay", "0", "--save", "rounded"});
  const std::vector<float> rounded = values("rounded/model.safetensors");
  ASSERT_FALSE(rounded.empty());
  for (const float value : rounded) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    ASSERT_EQ(bits & 0xFFFFU, 0U) << value;
  }
  const std::vector<float> full = values("full/model.safetensors");
  EXPECT_TRUE(std::ranges::any_of(full, [](float value) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    return (bits & 0xFFFFU) != 0;
  }));
}

TEST_F(LaunchFlags, TheMetaDeviceFlagChangesNothing) {
  const Words run = kSharded + Words{"--model-config", "model.yaml"};
  EXPECT_EQ(loss_of(run + Words{"--init-model-with-meta-device"}), loss_of(run));
}

TEST_F(LaunchFlags, AGuidesLaunchCommandTrains) {
  train(kSharded + Words{"--model-config",
                         "tied.yaml",
                         "--untie-embeddings-and-output-weights",
                         "--ckpt-format",
                         "torch_dcp",
                         "--distributed-backend",
                         "npu:hccl,cpu:gloo",
                         "--init-model-with-meta-device",
                         "--tensor-model-parallel-size",
                         "1",
                         "--nnodes",
                         "1",
                         "--node_rank",
                         "0",
                         "--master_addr",
                         "localhost",
                         "--master_port",
                         "6000",
                         "--train-iters",
                         "2"});
}

// The arguments of a training script of MindSpeed-MM for an FSDP2 model.
TEST_F(LaunchFlags, AMindSpeedScriptTrainsAndNamesWhatChangesNothing) {
  folder.write("fsdp2.yaml", "sharding_size: auto\nparam_dtype: bf16\nsub_modules_to_wrap: [\"model.layers.{*}\"]\n");
  const Outcome outcome = folder.run(kTrain + kTwoRanks + kSharded +
                                     Words{"--model-config",
                                           "model.yaml",
                                           "--train-iters",
                                           "2",
                                           "--tensor-model-parallel-size",
                                           "1",
                                           "--pipeline-model-parallel-size",
                                           "1",
                                           "--micro-batch-size",
                                           "1",
                                           "--global-batch-size",
                                           "2",
                                           "--num-layers",
                                           "2",
                                           "--hidden-size",
                                           "16",
                                           "--tokenizer-type",
                                           "NullTokenizer",
                                           "--num-workers",
                                           "8",
                                           "--no-load-optim",
                                           "--no-load-rng",
                                           "--no-save-optim",
                                           "--no-save-rng",
                                           "--swiglu",
                                           "--use-mcore-models",
                                           "--normalization",
                                           "RMSNorm",
                                           "--position-embedding-type",
                                           "rope",
                                           "--attention-dropout",
                                           "0",
                                           "--hidden-dropout",
                                           "0.0",
                                           "--bf16",
                                           "--lr",
                                           "0.1",
                                           "--lr",
                                           "0.01",
                                           "--no-gradient-accumulation-fusion",
                                           "--save-interval",
                                           "100"});
  EXPECT_EQ(
      outcome.err,
      "warning: without effect here: --num-workers 8, --use-mcore-models, "
      "--no-load-optim, --no-load-rng, --no-save-optim, --no-save-rng, --save-interval 100; the model is what its configuration says, and "
      "nothing is saved or loaded without --save and --load\n");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(folder.metrics("metrics.jsonl").size(), 2u);
}

TEST_F(LaunchFlags, AllThatAreNotTakenAreNamedInOneRun) {
  const Outcome outcome =
      folder.run(kFourSteps + Words{"--wandb-project", "p", "--lrr", "1", "--tokenizer-type", "GPT2BPETokenizer"});
  EXPECT_EQ(
      outcome.err,
      "shardloom: 3 flags are not taken:\n  unknown flag --lrr; did you mean --lr?\n"
      "  --tokenizer-type is GPT2BPETokenizer; only tokenizers of Hugging Face's are read; write PretrainedFromHF, and "
      "--tokenizer-name-or-path DIR with a tokenizer.json\n"
      "  --wandb-project names a project of Weights & Biases, which is not built; write --tensorboard-dir DIR\n");
  EXPECT_EQ(outcome.exit_code, 2);
}

// What is refused by its name, by its value and by what stands beside it.
TEST_F(LaunchFlags, ThatAreWrongEachInItsOwnWayAreNamedInOneRun) {
  const Outcome outcome = folder.run(kTrain + Words{"--model-config", "model.yaml", "--ckpt-format", "torch", "--bf16",
                                                    "--wandb-project", "p", "--muon-momentum", "0.9"});
  EXPECT_EQ(
      outcome.err,
      "shardloom: the command line has 4 mistakes:\n"
      "  --ckpt-format is torch; use torch_dcp, hf, torch_dist\n"
      "  --wandb-project names a project of Weights & Biases, which is not built; write --tensorboard-dir DIR\n"
      "  --muon-momentum is of --optimizer muon, which is not given; add it, or remove the flag\n"
      "  --bf16 is given without --use-torch-fsdp2, and parameters are fp32 here; add --use-torch-fsdp2 and a file "
      "with param_dtype: bf16, or remove it\n");
  EXPECT_EQ(outcome.exit_code, 2);
}

// A misspelt flag is said once, without what only follows from it.
TEST_F(LaunchFlags, ThatFollowFromAMisspeltOneAreNotNamed) {
  const Outcome outcome = folder.run(kTrain + Words{"--modle-config", "model.yaml"});
  EXPECT_EQ(outcome.err, "shardloom: unknown flag --modle-config; did you mean --model-config?\n");
}

TEST_F(LaunchFlags, ThatDescribeAnotherModelThanTheConfigurationAreRefusedWithBothPlaces) {
  const Words words = kTrain + Words{"--model-config", "model.yaml", "--train-iters", "1"};
  const Words same{"--num-layers",          "2",   "--hidden-size",       "16",  "--ffn-hidden-size", "24",
                   "--num-attention-heads", "2",   "--num-query-groups",  "1",   "--kv-channels",     "8",
                   "--vocab-size",          "256", "--padded-vocab-size", "256", "--norm-epsilon",    "1e-6"};
  EXPECT_EQ(folder.run(words + same).exit_code, 0);
  const Outcome outcome = folder.run(words + Words{"--num-layers", "40", "--hidden-size", "16", "--kv-channels", "64"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(
      outcome.err,
      "shardloom: --num-layers is 40 on the command line, and num_hidden_layers is 2 in model.yaml:5:20; "
      "--kv-channels is 64 on the command line, and hidden_size / num_attention_heads is 8 in model.yaml:3:14; the "
      "model is what its configuration says: give the same value, remove the flag, or change the file\n");
  for (const auto& [flag, key] : {std::pair("--hidden-size", "hidden_size"),
                                  {"--ffn-hidden-size", "intermediate_size"},
                                  {"--num-attention-heads", "num_attention_heads"},
                                  {"--num-query-groups", "num_key_value_heads"},
                                  {"--vocab-size", "vocab_size"},
                                  {"--padded-vocab-size", "vocab_size"},
                                  {"--norm-epsilon", "rms_norm_eps"},
                                  {"--rotary-base", "rope_theta"}}) {
    const Outcome other = folder.run(words + Words{flag, "3"});
    EXPECT_EQ(other.exit_code, 2) << flag;
    EXPECT_THAT(other.err, HasSubstr(fmt::format("{} is 3 on the command line, and {} is ", flag, key)));
  }
  const std::pair<Words, std::string> others[] = {
      {{"--qk-layernorm"}, "--qk-layernorm is on the command line, and models of model_type qwen2 do not have it"},
      {{"--normalization", "LayerNorm"}, "--normalization LayerNorm is on the command line, and models of model_type"},
      {{"--position-embedding-type", "mrope"}, "--position-embedding-type mrope is on the command line, and models of"},
      {{"--attention-dropout", "0.1"},
       "--attention-dropout is 0.1 on the command line, and models of model_type qwen2"},
      {{"--num-experts", "4"}, "--num-experts is 4 on the command line, and model.yaml:1:1 has no num_experts"},
      {{"--use-rope-scaling"},
       "rotary positions are scaled as llama3 on the command line, and as default in model.yaml"},
      {{"--rotary-seq-len-interpolation-factor", "2"}, "rotary positions are scaled as linear on the command line"},
      {{"--moe-layer-freq", "2"}, "--moe-layer-freq or --first-k-dense-replace is on the command line, and model.yaml"},
      {{"--padded-vocab-size", "384"}, "--padded-vocab-size is 384 on the command line, and vocab_size is 256"}};
  for (const auto& [flags, text] : others) {
    const Outcome other = folder.run(words + flags);
    EXPECT_EQ(other.exit_code, 2) << text;
    EXPECT_THAT(other.err, HasSubstr(text));
  }
  const Outcome padded = folder.run({"plan", "--model-config", "model.yaml", "--padded-vocab-size", "384",
                                     "--make-vocab-size-divisible-by", "128", "--max-position-embeddings", "7"});
  EXPECT_EQ(padded.exit_code, 2);
  EXPECT_THAT(padded.err, HasSubstr("--padded-vocab-size is 384"));  // 256 is a multiple of 128 already
  const Outcome explained =
      folder.run({"plan", "--model-config", "model.yaml", "--padded-vocab-size", "300",
                  "--make-vocab-size-divisible-by", "100", "--max-position-embeddings", "7", "--seq-length", "16"});
  EXPECT_EQ(explained.exit_code, 0) << explained.err;
  EXPECT_THAT(explained.out, HasSubstr("trained without the 44 padding\n    rows"));
  const Outcome plan = folder.run({"plan", "--model-config", "model.yaml", "--num-layers", "40"});
  EXPECT_EQ(plan.exit_code, 2);
  EXPECT_THAT(plan.err, HasSubstr("--num-layers is 40 on the command line, and num_hidden_layers is 2"));
}

TEST_F(LaunchFlags, VariablesThatChangeNothingAreNamedOnce) {
  const Outcome outcome =
      folder.run(kFourSteps + kTwoRanks, {"env", "PYTORCH_NPU_ALLOC_CONF=expandable_segments:True",
                                          "MULTI_STREAM_MEMORY_REUSE=2", "HCCL_CONNECT_TIMEOUT=1800"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err,
            "warning: MULTI_STREAM_MEMORY_REUSE is 2, which sets the allocator of NPUs; it changes nothing here\n"
            "warning: HCCL_CONNECT_TIMEOUT is 1800, which is of NPUs' connections; it changes nothing here: write "
            "--distributed-timeout-minutes N\n");
}

// As torchrun and msrun start them: rank 1 first, in the background.
TEST_F(LaunchFlags, ProcessesOfALauncherOnOneHostAreOneRun) {
  const auto started = [&](const std::string& of_rank, const Words& words) {
    std::string line;
    for (const std::string& word : words) line += " '" + word + "'";
    folder.write("start.sh", "one() { env " + of_rank + " " SHARDLOOM_PROGRAM + line +
                                 "; }\nR=1; one > one.txt 2>&1 & other=$!\nR=0; one; zero=$?\nwait $other; "
                                 "echo $zero $? > statuses.txt\n");
    return folder.run_command({"bash", "start.sh"});
  };
  const std::string torchrun =
      "RANK=$R LOCAL_RANK=$R WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "
      "MASTER_PORT=$$ TORCHELASTIC_RUN_ID=a TORCHELASTIC_RESTART_COUNT=0";
  const std::string msrun = "MS_ROLE=MS_WORKER RANK_ID=$R DEVICE_ID=$R RANK_SIZE=2 MS_SCHED_PORT=$$";
  const Outcome threads = folder.run(kFourSteps + kTwoRanks + kSharded);
  ASSERT_EQ(threads.exit_code, 0) << threads.err;
  const auto expected = folder.metrics("metrics.jsonl").back().at("loss");
  for (const std::string& environment : {torchrun, msrun}) {
    const Outcome outcome = started(environment, kFourSteps + kSharded);
    EXPECT_EQ(folder.read("statuses.txt"), "0 0\n") << outcome.err << folder.read("one.txt");
    EXPECT_THAT(outcome.out, HasSubstr("2 ranks"));
    EXPECT_EQ(folder.read("one.txt"), "");
    EXPECT_EQ(folder.metrics("metrics.jsonl").back().at("loss"), expected);
  }
  folder.write("no_bytes", "");
  started(torchrun, kFourSteps + kSharded + Words{"--data-path", "no_bytes"});
  EXPECT_EQ(folder.read("statuses.txt"), "2 1\n");
  EXPECT_EQ(folder.read("one.txt"),
            "shardloom: rank 1: the process of rank 0, which runs all ranks, failed; look at its output\n");
}

TEST_F(LaunchFlags, ProcessesOfALauncherOnSeveralHostsNeedAMeetingPoint) {
  const Words several = {"env", "RANK=3", "LOCAL_RANK=1", "WORLD_SIZE=8", "LOCAL_WORLD_SIZE=2", "MASTER_PORT=6000"};
  const Outcome outcome = folder.run(kFourSteps, several);
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("torchrun started 8 processes, but they know no meeting point: MASTER_ADDR and "
                                     "MASTER_PORT are not set; export the host of rank 0 and a free port of it"));
  EXPECT_EQ(folder.run(kFourSteps + kTwoRanks, {"env", "WORLD_SIZE=8"}).exit_code, 0);
  const Words unnamed = {"env", "RANK=0", "LOCAL_RANK=0", "WORLD_SIZE=2"};
  EXPECT_THAT(folder.run(kFourSteps + kSharded, unnamed).err,
              HasSubstr("RANK and WORLD_SIZE are set, but MASTER_PORT is not; export it"));
  EXPECT_THAT(folder.run(kFourSteps + kSharded + Words{"--nproc-per-node", "3"}, unnamed).err,
              HasSubstr("--nproc-per-node is 3, but the launcher started 2 processes; remove it"));
}

TEST_F(LaunchFlags, VariablesOfNpuScriptsAreNamed) {
  const Outcome outcome = folder.run(kFourSteps + kTwoRanks, {"env", "TASK_QUEUE_ENABLE=2"});
  EXPECT_EQ(
      outcome.err,
      "warning: TASK_QUEUE_ENABLE is 2, which prepares operators in a queue of their own on NPUs; it is not built "
      "yet and changes nothing here\n");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(folder
                .run(kFourSteps + kTwoRanks + Words{"--metrics-path", "unset.jsonl"},
                     {"env", "TASK_QUEUE_ENABLE=0", "CPU_AFFINITY_CONF="})
                .err,
            "");
}

}  // namespace
}  // namespace loom::test
