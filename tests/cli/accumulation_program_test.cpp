// Promise: parameters that stay gathered for the micro-batches of a step change no bit; gradients that are reduced once
//          a step train alike up to rounding, on every axis, and resume to the bit; a plan has the volume of each.
// World:   the built program; a Llama and a Qwen3-MoE of two layers; 2 and 4 ranks; steps of 2 and 4 micro-batches.
#include <gmock/gmock.h>

#include "tests/cli/axes_program.h"

namespace loom::test {
namespace {

using json = nlohmann::ordered_json;

class AccumulationProgram : public AxesProgram {
 protected:
  AccumulationProgram() : AxesProgram(4, 2, {"--eval-iters", "0"}) {
    folder.write("llama.yaml",
                 "model_type: llama\nvocab_size: 256\nhidden_size: 16\nintermediate_size: 24\nnum_hidden_layers: 2\n"
                 "num_attention_heads: 4\nnum_key_value_heads: 2\nmax_position_embeddings: 32\nrms_norm_eps: 1.0e-6\n"
                 "tie_word_embeddings: false\n");
  }

  Words job(const std::string& keys, int ranks, const std::string& model = "llama.yaml") const {
    folder.write("file.yaml", kSharding + keys);
    return words("file.yaml", ranks, model) + Words{"--micro-batch-size", "1", "--global-batch-size", "8"} + kFour;
  }
  std::vector<double> trained(const std::string& keys, int ranks, const Words& more = {},
                              const std::string& model = "llama.yaml") const {
    return losses("run.jsonl", job(keys, ranks, model) + more);
  }

  const Words kFour = {"--train-iters", "4"};
};

TEST_F(AccumulationProgram, KeepsParametersWithoutChangingABit) {
  for (const std::string keys :
       {"", "reshard_after_forward: false\n", "reshard_after_forward: 2\n",
        "num_to_forward_prefetch: 1\nnum_to_backward_prefetch: 1\n", "recompute_modules: [\"model.layers.{*}\"]\n",
        "offload_to_cpu: true\n", "pregather: true\n"}) {
    const std::vector<double> plain = trained(keys, 4);
    ASSERT_EQ(plain.size(), 4U);
    for (const char* executor : {"inline", "threaded"}) {
      SCOPED_TRACE(fmt::format("{}, {}", keys, executor));
      EXPECT_EQ(trained(keys + "reshard_after_backward: false\n", 4, {"--device-executor", executor}), plain);
    }
  }
}

TEST_F(AccumulationProgram, ReducesOnceOnEveryAxis) {
  for (const auto& [model, keys] :
       {std::pair<const char*, std::string>{"llama.yaml", ""},
        {"llama.yaml", "reshard_after_forward: false\nreshard_after_backward: false\n"},
        {"llama.yaml", "recompute_modules: [\"model.layers.{*}\"]\n"},
        {"llama.yaml", "ulysses_parallel_size: 2\n"},
        {"llama.yaml", "ring_attention_size: 2\n"},
        {"llama.yaml", "tensor_parallel_size: 2\nsequence_parallel: true\n"},
        {"llama.yaml", "offload_to_cpu: true\n"},
        {"moe.yaml", "expert_parallel_size: 2\nmoe_modules: [\"model.layers.{*}.mlp.experts\"]\n"}}) {
    SCOPED_TRACE(fmt::format("{}, {}", model, keys));
    const std::vector<double> each = trained(keys, 4, {}, model);
    const std::vector<double> once = trained(keys + "sync_each_batch: false\n", 4, {}, model);
    ASSERT_EQ(each.size(), 4U);
    expect_near(once, each);
    EXPECT_EQ(trained(keys + "sync_each_batch: false\n", 4, {"--device-executor", "threaded"}, model), once);
  }
}

TEST_F(AccumulationProgram, ResumesToTheBit) {
  const std::string keys = "sync_each_batch: false\nreshard_after_forward: false\nreshard_after_backward: false\n";
  const std::vector<double> whole = trained(keys, 2);
  trained(keys, 2, {"--save", "saved", "--save-interval", "2", "--ckpt-format", "torch_dcp"});
  const std::vector<double> rest = losses("rest.jsonl", job(keys, 2) + Words{"--load", "saved", "--ckpt-step", "2"});
  EXPECT_EQ(rest, std::vector<double>(whole.begin() + 2, whole.end()));
}

// Bytes that a rank receives: parameters P and gradients G of N ranks, in fp32.
TEST_F(AccumulationProgram, IsPlannedWithItsVolume) {
  const auto received = [&](const std::string& keys) {
    const Outcome outcome = folder.run(Words{"plan"} + job(keys, 2) + Words{"--device", "h100", "--json", "-"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::int64_t bytes = 0;
    for (const auto& axis : json::parse(outcome.out).at("volume")) {
      EXPECT_EQ(axis.at("predicted_bytes"), axis.at("received_bytes"));
      bytes += axis.at("received_bytes").get<std::int64_t>();
    }
    return bytes;
  };
  // Four micro-batches; embedding, layers, output layer and the final norm have a backward that gathers, but the root.
  const std::int64_t each = received("reshard_after_forward: false\n");
  const std::int64_t gathered_once = received("reshard_after_forward: false\nreshard_after_backward: false\n");
  const std::int64_t reduced_once = received("reshard_after_forward: false\nsync_each_batch: false\n");
  const std::int64_t both =
      received("reshard_after_forward: false\nreshard_after_backward: false\nsync_each_batch: false\n");
  EXPECT_EQ(each, 4 * both);
  EXPECT_EQ(gathered_once - both, reduced_once - both) << "P and G are of one size in fp32";
  EXPECT_EQ(each - gathered_once, 3 * both / 2);
}

// Megatron's distributed optimizer is a file: its bits, what it says, and where it does not go.
TEST_F(AccumulationProgram, IsMegatronsDistributedOptimizer) {
  const auto without_file = [&](const Words& more) {
    return Words{"train", "--model-config", "llama.yaml", "--nproc-per-node",   "2",        "--data-path",
                 "data",  "--seq-length",   "16",         "--micro-batch-size", "1",        "--global-batch-size",
                 "8",     "--lr",           "0.01",       "--lr-decay-style",   "constant", "--eval-iters",
                 "0",     "--metrics-path", "run.jsonl"} +
           kFour + more;
  };
  const auto losses_of_run = [&] {
    std::vector<double> values;
    for (const auto& line : folder.metrics("run.jsonl")) values.push_back(line.at("loss"));
    return values;
  };
  const std::vector<double> one = trained("", 1);
  const std::string keys = "reshard_after_forward: false\nreshard_after_backward: false\nsync_each_batch: false\n";
  folder.write("layers.yaml", "sharding_size: auto\n" + keys + "sub_modules_to_wrap: [\"model.layers.{*}\"]\n");
  const std::vector<double> by_file =
      losses("run.jsonl", words("layers.yaml", 2, "llama.yaml") +
                              Words{"--micro-batch-size", "1", "--global-batch-size", "8"} + kFour);
  const Outcome overlapped =
      folder.run(without_file({"--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"}));
  EXPECT_EQ(overlapped.exit_code, 0) << overlapped.err;
  EXPECT_THAT(overlapped.out, ::testing::HasSubstr("--use-distributed-optimizer as fsdp2_config.yaml:\n"
                                                   "  sharding_size: auto\n"
                                                   "  reshard_after_forward: false\n"
                                                   "  reshard_after_backward: false\n"
                                                   "  sync_each_batch: false\n"
                                                   "  sub_modules_to_wrap: [\"model.layers.{*}\"]\n"));
  EXPECT_EQ(losses_of_run(), by_file);
  expect_near(losses_of_run(), one);
  const Outcome alone = folder.run(without_file({"--use-distributed-optimizer"}));
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_THAT(alone.out, ::testing::Not(::testing::HasSubstr("sub_modules_to_wrap")));
  expect_near(losses_of_run(), one);
  const Outcome piped = folder.run(
      without_file({"--use-distributed-optimizer", "--overlap-grad-reduce", "--pipeline-model-parallel-size", "2"}));
  EXPECT_EQ(piped.exit_code, 0) << piped.err;
  EXPECT_THAT(piped.out, ::testing::Not(::testing::HasSubstr("sync_each_batch")));
  expect_near(losses_of_run(), one);
  const Outcome both =
      folder.run(Words{"train"} + words("layers.yaml", 2, "llama.yaml") + kFour + Words{"--use-distributed-optimizer"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err,
              ::testing::HasSubstr("--use-distributed-optimizer does not go with a file of --use-torch-fsdp2"));
}

}  // namespace
}  // namespace loom::test
