// Promise: ranks that share sequences train as ranks that have their own, with every algorithm, beside shared experts
//          and latent attention; they drop the same elements; their checkpoints are resumed with other numbers of
//          ranks; a plan shows their exchanges; values that do not fit are refused before anything is built.
// World:   the built program; a Qwen3-MoE and a DeepSeek-V3 of two layers; 1 to 8 ranks.
#include <cmath>
#include <gmock/gmock.h>

#include "tests/cli/axes_program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ContextParallel : public AxesProgram {
 protected:
  ContextParallel() : AxesProgram(4, 2, {"--eval-iters", "1", "--eval-interval", "2", "--held-out-fraction", "0.1"}) {
    folder.write("plain.yaml", kSharding);
  }

  std::vector<double> with(const std::string& name, const std::string& keys, int ranks, const Words& more = {}) const {
    folder.write(name + ".yaml", kSharding + keys);
    return losses(name + ".jsonl", words(name + ".yaml", ranks) + Words{"--train-iters", "4"} + more);
  }

  void write_latent() const { folder.write("latent.yaml", latent_model(2)); }

  const Words kFour = {"--train-iters", "4"};
};

TEST_F(ContextParallel, TrainsAsRanksWithSequencesOfTheirOwn) {
  const std::vector<double> whole = losses("whole.jsonl", words("plain.yaml", 2) + kFour);
  ASSERT_GE(whole.size(), 4U);
  expect_near(with("ulysses", "ulysses_parallel_size: 2\n", 2), whole);
  expect_near(with("ring", "ring_attention_size: 2\n", 4), whole);
  expect_near(with("regathered", "ring_attention_size: 4\nring_rotate_method: allgather\n", 4), whole);
  expect_near(with("gathered", "ring_attention_size: 2\nring_rotate_method: kvallgather\n", 2), whole);
  expect_near(with("hybrid", "ring_attention_size: 2\nulysses_parallel_size: 2\n", 4), whole);
  const Words means = {"--loss-reduction", "micro_batch"};
  expect_near(with("means", "ring_attention_size: 2\n", 2, means),
              losses("whole_means.jsonl", words("plain.yaml", 2) + kFour + means));
  const std::string experts = "expert_parallel_size: 2\nmoe_modules: [\"model.layers.{*}.mlp.experts\"]\n";
  expect_near(with("experts", experts + "ring_attention_size: 2\nulysses_parallel_size: 2\n", 8), whole);
}

TEST_F(ContextParallel, HasTheSameBitsWithEveryExecutorRecomputeAndOffload) {
  const std::string ring = "ring_attention_size: 2\nulysses_parallel_size: 2\n";
  const std::vector<double> plain = with("plain4", ring, 4);
  EXPECT_EQ(with("inline", ring, 4, {"--device-executor", "inline"}), plain);
  EXPECT_EQ(with("more",
                 ring + "recompute_modules: [\"model.layers.{*}\"]\nuse_reentrant: false\nnum_to_forward_prefetch: 1\n"
                        "num_to_backward_prefetch: 1\noffload_to_cpu: true\n",
                 4),
            plain);
  EXPECT_EQ(with("chunks", ring, 4, {"--loss-chunk-size", "2"}).size(), plain.size());
}

TEST_F(ContextParallel, PadsRowsThatDoNotDivide) {
  const Words odd = {"--seq-length", "15"};
  const auto without = [&](Words all) {
    all.erase(std::find(all.begin(), all.end(), "--seq-length"), std::find(all.begin(), all.end(), "--seq-length") + 2);
    return all;
  };
  folder.write("ring4.yaml", kSharding + "ring_attention_size: 4\n");
  expect_near(losses("odd.jsonl", without(words("ring4.yaml", 4)) + odd + kFour),
              losses("odd1.jsonl", without(words("plain.yaml", 2)) + odd + kFour));
}

TEST_F(ContextParallel, MegatronsFlagsSayItToo) {
  const auto flags = [&](const std::string& name, const Words& more) {
    return losses(name, words("plain.yaml", 4) + kFour + more);
  };
  const Words size = {"--context-parallel-size", "4"};
  EXPECT_EQ(flags("r.jsonl", size), with("r4", "ring_attention_size: 4\n", 4));
  EXPECT_EQ(flags("u.jsonl", size + Words{"--context-parallel-algo", "ulysses_cp_algo"}),
            with("u4", "ulysses_parallel_size: 4\n", 4));
  EXPECT_EQ(flags("h.jsonl", size + Words{"--context-parallel-algo", "hybrid_cp_algo", "--ulysses-degree-in-cp", "2"}),
            with("h4", "ulysses_parallel_size: 2\nring_attention_size: 2\n", 4));
  EXPECT_EQ(flags("g.jsonl", size + Words{"--context-parallel-algo", "kvallgather_cp_algo"}),
            with("g4", "ring_attention_size: 4\nring_rotate_method: kvallgather\n", 4));
}

TEST_F(ContextParallel, SharesLatentAttention) {
  write_latent();
  folder.write("cp.yaml", kSharding + "ring_attention_size: 2\nulysses_parallel_size: 2\n");
  expect_near(losses("cp.jsonl", words("cp.yaml", 4, "latent.yaml") + kFour),
              losses("no.jsonl", words("plain.yaml", 1, "latent.yaml") + kFour));
}

// Adapters of latent attention see tokens row by row, those of the expert that all tokens share see them in a list.
// Under SGD rounding stays rounding: fp32 sums in another order.
TEST_F(ContextParallel, DropsWhatRanksWithSequencesOfTheirOwnDrop) {
  write_latent();
  const Words lora = {"--optimizer",  "sgd", "--lora-target-modules", "all-linear", "--lora-r",      "4",
                      "--lora-alpha", "32",  "--train-iters",         "6",          "--lora-dropout"};
  const auto curve = [&](const std::string& name, const std::string& keys, int ranks, const std::string& dropout) {
    folder.write(name + ".yaml", kSharding + keys);
    return losses(name + ".jsonl", words(name + ".yaml", ranks, "latent.yaml") + lora + Words{dropout});
  };
  const std::vector<double> whole = curve("one", "", 1, "0.5");
  EXPECT_GT(std::abs(curve("none", "", 1, "0").back() - whole.back()), 1e-4);
  const auto expect_whole = [&](const std::string& name, const std::string& keys, int ranks) {
    const std::vector<double> found = curve(name, keys, ranks, "0.5");
    ASSERT_EQ(found.size(), whole.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], whole[i], 2e-6) << name << " " << i;
  };
  const std::string ring = "ring_attention_size: 2\n", ulysses = "ulysses_parallel_size: 2\n";
  expect_whole("ulysses", ulysses, 2);
  expect_whole("ring", ring, 2);
  expect_whole("both", ring + ulysses, 4);
  expect_whole("two_rings", ring, 4);
  expect_whole("recomputed", ring + "recompute_modules: [\"model.layers.{*}\"]\nuse_reentrant: false\n", 2);
}

TEST_F(ContextParallel, IsSavedResumedAndGeneratedFrom) {
  folder.write("cp.yaml", kSharding + "ring_attention_size: 2\n");
  const Words saved = {"--train-iters", "6", "--save", "out", "--save-interval", "3", "--ckpt-format", "torch_dcp"};
  const std::vector<double> all = losses("all.jsonl", words("cp.yaml", 4) + saved);
  const Words from = {"--train-iters", "6", "--load", "out", "--ckpt-step", "3"};
  const std::vector<double> same = losses("same.jsonl", words("cp.yaml", 4) + from);
  ASSERT_GE(all.size(), same.size());
  const std::vector<double> last(all.end() - static_cast<std::ptrdiff_t>(same.size()), all.end());
  EXPECT_EQ(same, last);
  expect_near(losses("two.jsonl", words("cp.yaml", 2) + from), last);
  expect_near(losses("one.jsonl", words("plain.yaml", 1) + from), last);
  const Outcome model = folder.run(Words{"train"} + words("cp.yaml", 2) + Words{"--train-iters", "2", "--save", "hf"});
  ASSERT_EQ(model.exit_code, 0) << model.err;
  EXPECT_EQ(folder.run({"generate", "hf", "--prompt", "a", "--max-new-tokens", "4"}).exit_code, 0);
}

TEST_F(ContextParallel, IsPlannedWithItsExchangesOnTheLinks) {
  const auto plan = [&](const std::string& keys) {
    folder.write("plan.yaml", kSharding + keys);
    const Outcome outcome =
        folder.run(Words{"plan"} + words("plan.yaml", 1) +
                   Words{"--world-size", "64", "--global-batch-size", "64", "--device", "h200", "--json", "-"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  };
  const nlohmann::json whole = plan(""), ring = plan("ring_attention_size: 4\n"),
                       ulysses = plan("ulysses_parallel_size: 4\n");
  EXPECT_THAT(ring.dump(), HasSubstr("send_recv"));
  EXPECT_THAT(ulysses.dump(), HasSubstr("all_to_all"));
  EXPECT_THAT(whole.dump(), Not(HasSubstr("all_to_all")));
  EXPECT_EQ(ring.at("parameters"), whole.at("parameters"));
}

TEST_F(ContextParallel, TheStartShowsAxesAndWhatIsShardedOverThem) {
  folder.write("all.yaml", kSharding +
                               "ring_attention_size: 2\nulysses_parallel_size: 2\nexpert_parallel_size: 4\n"
                               "moe_modules: [\"model.layers.{*}.mlp.experts\"]\n");
  const Outcome outcome = folder.run(Words{"train"} + words("all.yaml", 8) + Words{"--train-iters", "1"});
  EXPECT_THAT(outcome.out, HasSubstr("axis           ranks   this rank\n"
                                     "data               2           0  samples of their own\n"
                                     "ring               2           0  share sequences: keys and values travel\n"
                                     "ulysses            2           0  share sequences: heads travel\n"
                                     "efsdp              2           0  shard the same experts\n"
                                     "ep                 4           0  share a set of experts: tokens travel\n"));
  EXPECT_THAT(outcome.out,
              HasSubstr("all but experts                        8           1              8           8\n"
                        "experts                   ep 4 x efsdp 2           1              2           8\n"));
}

TEST_F(ContextParallel, ARunsFirstStepMovesWhatIsPredicted) {
  folder.write("cp.yaml", kSharding + "ring_attention_size: 2\nulysses_parallel_size: 2\n");
  const Outcome outcome = folder.run(Words{"train"} + words("cp.yaml", 4) +
                                     Words{"--train-iters", "2", "--log-format", "megatron", "--log-throughput"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("by axis, received KiB        ranks   predicted    recorded\n"));
  EXPECT_THAT(outcome.out, ::testing::ContainsRegex("\n  ulysses +2 "));
  EXPECT_THAT(outcome.out, Not(HasSubstr("predicted for equally loaded experts")));
}

TEST_F(ContextParallel, EveryDialectThatSaysItTrains) {
  folder.write("qwen3/config.json",
               R"({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 256, "hidden_size": 16,
 "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
 "max_position_embeddings": 32, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false})");
  folder.write("llm.yaml",
               "model: {model_id: qwen3, model_name_or_path: qwen3, train_from_scratch: true}\n"
               "data: {cutoff_len: 16, data_manager_type: mg}\n"
               "parallel: {fsdp_size: 4, cp_size: 2, cp_type: ring}\n"
               "training: {stage: pt, output_dir: out, max_steps: 3, per_device_train_batch_size: 1, "
               "gradient_accumulation_steps: 2, lr: 1e-3}\n");
  folder.write(
      "native.yaml",
      "parallel:\n  ulysses_parallel_size: 2\n  data_parallel_size: 2\n"
      "  fsdp_plan: {apply_modules: [\"model.layers.{*}\", \"*lm_head\"]}\n"
      "model: {model_name_or_path: qwen3}\n"
      "data:\n  dataset_param: {dataset_type: huggingface, basic_parameters: {cutoff_len: 16, stage: pretrain}}\n"
      "  dataloader_param: {dataloader_mode: sampler, sampler_type: BaseRandomBatchSampler, shuffle: true, "
      "drop_last: true, pin_memory: true}\n"
      "training: {init_model_with_meta_device: true, micro_batch_size: 1, train_iters: 3, "
      "gradient_accumulation_steps: 2}\n");
  folder.write("accelerate.yaml",
               "distributed_type: FSDP\nnum_processes: 4\nparallelism_config:\n"
               "  parallelism_config_dp_shard_size: 2\n  parallelism_config_cp_size: 2\n"
               "  parallelism_config_cp_comm_strategy: alltoall\n"
               "fsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}\n");
  const Words usual = {"--data-path",   "data", "--bytes-as-tokens", "--nproc-per-node", "4", "--model-config", "qwen3",
                       "--train-iters", "3"};
  const auto trained = [&](const Words& dialect) {
    std::filesystem::remove_all(folder.path("m.jsonl"));
    const Outcome outcome = folder.run(Words{"train"} + dialect + usual + Words{"--metrics-path", "m.jsonl"});
    EXPECT_EQ(outcome.exit_code, 0) << dialect.front() << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("share sequences")) << dialect.front();
    EXPECT_EQ(folder.metrics("m.jsonl").size(), 3U) << dialect.front();
  };
  trained({"llm.yaml"});
  trained({"native.yaml"});
  trained({"accelerate.yaml", "--seq-length", "16"});
  trained({"--parallelism.context_parallel_degree", "2", "--training.seq_len", "16", "--training.local_batch_size", "1",
           "--training.steps", "3", "--lr_scheduler.warmup_steps", "1"});
}

// Of published size, with what MindSpeed-LLM's files write.
TEST_F(ContextParallel, PlansQwen3OfThirtyBillionsWithExpertsAndSequencesShared) {
  folder.write("a3b/config.json",
               R"({"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 151936,
 "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32,
 "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "num_experts": 128,
 "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": true, "decoder_sparse_step": 1,
 "mlp_only_layers": [], "rope_theta": 1000000.0, "tie_word_embeddings": false})");
  for (const int ep : {8, 16}) {
    folder.write(
        "a3b.yaml",
        fmt::format("model: {{model_id: qwen3_moe, model_name_or_path: a3b, train_from_scratch: true}}\n"
                    "data: {{cutoff_len: 4096, data_manager_type: mg}}\n"
                    "parallel: {{fsdp_size: 16, ep_size: {}, cp_size: 4, cp_type: ulysses, recompute: true}}\n"
                    "training: {{stage: pt, output_dir: out, max_steps: 10, per_device_train_batch_size: 1}}\n",
                    ep));
    const Outcome outcome =
        folder.run({"plan", "a3b.yaml", "--world-size", "16", "--device", "ascend-910c", "--json", "-"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const nlohmann::json plan = nlohmann::json::parse(outcome.out);
    EXPECT_EQ(plan.at("parameters"), 30532122624);
  }
}

TEST_F(ContextParallel, WhatDoesNotFitIsRefusedFirst) {
  const auto refused = [&](const std::string& text, int ranks, const Words& more = {}) {
    folder.write("bad.yaml", kSharding + text);
    const Outcome outcome = folder.run(Words{"train"} + words("bad.yaml", ranks) + Words{"--train-iters", "1"} + more);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(refused("ring_attention_size: 3\n", 2),
              HasSubstr("bad.yaml:3:22: ulysses_parallel_size 1 x ring_attention_size 3 = 3, but 2 ranks are running; "
                        "use sizes whose product is 1 or 2"));
  EXPECT_THAT(refused("ulysses_parallel_size: 8\nring_attention_size: 1\n", 8),
              HasSubstr("bad.yaml:3:24: ulysses_parallel_size is 8, but 'model.layers.0.self_attn' has 4 attention "
                        "heads; use a divisor of 4"));
  EXPECT_THAT(refused("ring_attention_size: 2\nchunk_mbs_modules: [\"model.layers.{*}\"]\n", 2),
              HasSubstr("bad.yaml:4:1: chunk_mbs_modules does not go with sequences that ranks share; remove it"));
  EXPECT_THAT(refused("ring_attention_size: 2\n", 2, {"--loss-reduction", "per_sample"}),
              HasSubstr("--loss-reduction per_sample: 2 ranks share each sample; use per_token or micro_batch"));
  EXPECT_THAT(refused("ring_attention_size: 2\n", 4, {"--micro-batch-size", "3"}),
              HasSubstr("--micro-batch-size 3 x 2 groups of ranks that share sequences needs a multiple of 6"));
  folder.write("gpt2.yaml", "model_type: gpt2\nvocab_size: 256\nn_embd: 16\nn_layer: 1\nn_head: 2\nn_positions: 32\n");
  folder.write("gpt2_sharding.yaml", "sub_modules_to_wrap: [\"transformer.h.{*}\"]\nring_attention_size: 2\n");
  const Outcome gpt2 =
      folder.run(Words{"train"} + words("gpt2_sharding.yaml", 2, "gpt2.yaml") + Words{"--train-iters", "1"});
  EXPECT_THAT(gpt2.err, HasSubstr("gpt2_sharding.yaml:2:22: 2 ranks share a sequence, but GPT2LMHeadModel cannot work "
                                  "on part of one; write 1"));
  const Outcome alone = folder.run({"train", "--model-config", "moe.yaml", "--data-path", "data", "--seq-length", "16",
                                    "--train-iters", "1", "--context-parallel-size", "2"});
  EXPECT_THAT(alone.err, HasSubstr("--context-parallel-size is 2, which needs --use-torch-fsdp2 --fsdp2-config-path "
                                   "FILE and 2 ranks; write 1, or add them"));
}

}  // namespace
}  // namespace loom::test
