// Promise: experts that ranks share train as experts that every rank has; checkpoints of them are resumed on the same
//          number of ranks bit for bit, and on others or without sharing on the same curve; they are exported, planned
//          and generated from; values that do not fit are refused before anything is built.
// World:   the built program; a Qwen3-MoE of two layers with four experts; 1, 2 and 4 ranks.
#include <cmath>
#include <gmock/gmock.h>

#include "tests/cli/axes_program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;

class ExpertParallel : public AxesProgram {
 protected:
  ExpertParallel() : AxesProgram(2, 1, {"--eval-iters", "0"}) {
    folder.write("whole.yaml", kSharding);
    folder.write("shared.yaml", kSharding + kShared);
    folder.write("copies.yaml", kSharding + kShared + "reshard_local_experts: false\n");
  }

  const std::string kShared = "expert_parallel_size: 2\nmoe_modules: [\"model.layers.{*}.mlp.experts\"]\n";
};

TEST_F(ExpertParallel, TrainsAsExpertsThatEveryRankHas) {
  const std::vector<double> whole = losses("whole.jsonl", words("whole.yaml", 2) + Words{"--train-iters", "6"});
  EXPECT_EQ(whole.size(), 6U);
  for (const char* sharding : {"shared.yaml", "copies.yaml"}) {
    for (const int ranks : {2, 4}) {
      const std::string name = fmt::format("{}{}.jsonl", sharding, ranks);
      expect_near(losses(name, words(sharding, ranks) + Words{"--train-iters", "6"}), whole);
    }
  }
}

TEST_F(ExpertParallel, IsTheSameWithEveryExecutorPrefetchAndRecompute) {
  const Words two = words("shared.yaml", 2) + Words{"--train-iters", "3"};
  const std::vector<double> plain = losses("plain.jsonl", two);
  EXPECT_EQ(losses("inline.jsonl", two + Words{"--device-executor", "inline"}), plain);
  folder.write("more.yaml", kSharding + kShared +
                                "recompute_modules: [\"model.layers.{*}\"]\nuse_reentrant: false\n"
                                "num_to_forward_prefetch: 1\nnum_to_backward_prefetch: 1\noffload_to_cpu: true\n");
  EXPECT_EQ(losses("more.jsonl", words("more.yaml", 2) + Words{"--train-iters", "3"}), plain);
}

TEST_F(ExpertParallel, NormsAndRoutersMayStayGatheredInAGroupOfTheirOwn) {
  folder.write("aligned.yaml", kSharding + kShared + "align_fsdp_param_groups: true\n");
  const Words three = {"--train-iters", "3"};
  EXPECT_EQ(losses("aligned.jsonl", words("aligned.yaml", 2) + three),
            losses("apart.jsonl", words("shared.yaml", 2) + three));
  const Outcome outcome = folder.run(Words{"train"} + words("aligned.yaml", 2) + Words{"--train-iters", "1"});
  EXPECT_THAT(outcome.out, HasSubstr("model.layers.0.self_attn.q_norm, model.layers.0.self_attn.k_norm, "
                                     "model.layers.0.mlp.gate, model.layers.0.input_layernorm, "
                                     "model.layers.0.post_attention_layernorm, model.layers.1.self_attn.q_norm"));
}

TEST_F(ExpertParallel, MegatronsFlagSaysItToo) {
  const Words two = {"--train-iters", "3"};
  EXPECT_EQ(losses("flag.jsonl", words("whole.yaml", 2) + two + Words{"--expert-model-parallel-size", "2"}),
            losses("file.jsonl", words("shared.yaml", 2) + two));
}

TEST_F(ExpertParallel, IsSavedResumedExportedAndGeneratedFrom) {
  const Words saved = {"--train-iters", "6", "--save", "out", "--save-interval", "3", "--ckpt-format", "torch_dcp"};
  const std::vector<double> all = losses("all.jsonl", words("shared.yaml", 2) + saved);
  const std::vector<double> last(all.begin() + 3, all.end());
  const Words from = {"--train-iters", "6", "--load", "out", "--ckpt-step", "3"};
  EXPECT_EQ(losses("same.jsonl", words("shared.yaml", 2) + from), last);
  expect_near(losses("four.jsonl", words("shared.yaml", 4) + from), last);
  expect_near(losses("one.jsonl", words("whole.yaml", 1) + from), last);

  const Outcome model =
      folder.run(Words{"train"} + words("shared.yaml", 2) + Words{"--train-iters", "6", "--save", "hf"});
  ASSERT_EQ(model.exit_code, 0) << model.err;
  const Outcome converted = folder.run(
      {"convert", "dcp-to-hf", "--load-dir", "out/iter_0000006", "--save-dir", "again", "--model-assets-dir", "hf"});
  ASSERT_EQ(converted.exit_code, 0) << converted.err;
  EXPECT_EQ(folder.read("again/model.safetensors").size(), folder.read("hf/model.safetensors").size());
  const Outcome text = folder.run({"generate", "again", "--prompt", "a", "--max-new-tokens", "4"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_EQ(folder.run({"generate", "hf", "--prompt", "a", "--max-new-tokens", "4"}).out, text.out);
  const Outcome inspected = folder.run({"inspect", "out/iter_0000006"});
  EXPECT_EQ(inspected.exit_code, 0) << inspected.err;
}

TEST_F(ExpertParallel, IsPlannedWithTheExchangeOnItsLinks) {
  const auto plan = [&](const std::string& sharding, int world) {
    const Outcome outcome = folder.run(Words{"plan"} + words(sharding, 1) +
                                       Words{"--world-size", std::to_string(world), "--global-batch-size",
                                             std::to_string(4 * world), "--device", "h200", "--json", "-"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  };
  const nlohmann::json shared = plan("shared.yaml", 64), whole = plan("whole.yaml", 64);
  EXPECT_THAT(shared.dump(), HasSubstr("all_to_all"));
  EXPECT_THAT(whole.dump(), ::testing::Not(HasSubstr("all_to_all")));
  EXPECT_EQ(shared.at("parameters"), whole.at("parameters"));
}

// Routers that have just been drawn do not load experts evenly.
TEST_F(ExpertParallel, ARunSaysThatItsRoutersMovedOtherBytesThanPredicted) {
  const Outcome outcome = folder.run(Words{"train"} + words("shared.yaml", 2) +
                                     Words{"--train-iters", "1", "--log-format", "megatron", "--log-throughput"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, ::testing::ContainsRegex("\n  ep +2 "));
  EXPECT_THAT(outcome.out, HasSubstr("predicted for equally loaded experts"));
}

TEST_F(ExpertParallel, APlanTakesTheLoadOfEachExpert) {
  const auto plan = [&](const std::string& load) {
    folder.write("load.yaml", "expert_load: " + load + "\n");
    return folder.run(
        Words{"plan"} + words("shared.yaml", 1) +
        Words{"--world-size", "8", "--global-batch-size", "8", "--expert-load", "load.yaml", "--json", "-"});
  };
  const auto flops = [&](const std::string& load) {
    const Outcome outcome = plan(load);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out).at("throughput").at("hardware_flops").get<double>();
  };
  EXPECT_EQ(flops("[1, 1, 1, 1]"), flops("[5, 5, 5, 5]"));
  EXPECT_GT(flops("[0, 0, 3, 1]"), flops("[1, 1, 1, 1]"));
  EXPECT_EQ(flops("[0, 0, 3, 1]"), flops("[3, 1, 0, 0]"));  // the rank with most is planned
  EXPECT_THAT(plan("[1, 1]").err, HasSubstr("--expert-load has 2 numbers, and 'model.layers.0.mlp.experts' 4 experts; "
                                            "write one for each expert"));
  EXPECT_THAT(plan("[1, x]").err, HasSubstr("load.yaml:1:18: x is no share of an expert; use numbers of at "
                                            "least 0, one for each expert, as in expert_load: [3, 1, 1, 1]"));
  EXPECT_THAT(plan("[0, 0]").err, HasSubstr("load.yaml:1:1: no expert gets a token"));
}

TEST_F(ExpertParallel, WhatDoesNotFitIsRefusedFirst) {
  const auto refused = [&](const std::string& text, int ranks) {
    folder.write("bad.yaml", kSharding + text);
    const Outcome outcome = folder.run(Words{"train"} + words("bad.yaml", ranks) + Words{"--train-iters", "1"});
    EXPECT_EQ(outcome.exit_code, 2);
    return outcome.err;
  };
  EXPECT_THAT(refused("expert_parallel_size: 3\nmoe_modules: [\"model.layers.{*}.mlp.experts\"]\n", 2),
              HasSubstr("bad.yaml:3:23: expert_parallel_size is 3, but 2 ranks are running; use 1 or 2"));
  EXPECT_THAT(refused("expert_parallel_size: 2\n", 2),
              HasSubstr("bad.yaml:3:23: expert_parallel_size is 2, but no module is listed in moe_modules; list the "
                        "modules of experts, such as model.layers.{*}.mlp.experts"));
  EXPECT_THAT(refused("expert_parallel_size: 2\nmoe_modules: [\"model.layers.{*}.mlp\"]\n", 2),
              HasSubstr("bad.yaml:4:14: moe_modules: 'model.layers.0.mlp' is a Qwen3MoeSparseMoeBlock, which has no "
                        "experts to share"));
  std::string six = folder.read("moe.yaml");
  six.replace(six.find("num_experts: 4"), 14, "num_experts: 6");
  folder.write("moe.yaml", six);
  EXPECT_THAT(refused("expert_parallel_size: 4\nmoe_modules: [\"model.layers.{*}.mlp.experts\"]\n", 4),
              HasSubstr("'model.layers.0.mlp.experts' has 6 experts, which 4 ranks cannot share evenly; use an "
                        "expert_parallel_size that divides 6"));
}

}  // namespace
}  // namespace loom::test
