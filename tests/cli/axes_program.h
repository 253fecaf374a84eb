// The program on ranks that share experts or sequences: a small Qwen3-MoE, and what a run of it gives.
#pragma once

#include <gmock/gmock.h>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/program.h"

namespace loom::test {

class AxesProgram : public ::testing::Test {
 protected:
  // `evaluation`: the flags of every run's evaluation.
  AxesProgram(int heads, int kv_heads, Words evaluation) : evaluation_(std::move(evaluation)) {
    folder.write(
        "moe.yaml",
        fmt::format("model_type: qwen3_moe\nvocab_size: 256\nhidden_size: 16\nintermediate_size: 24\n"
                    "num_hidden_layers: 2\nnum_attention_heads: {}\nnum_key_value_heads: {}\nhead_dim: 8\n"
                    "max_position_embeddings: 32\nrms_norm_eps: 1.0e-6\nnum_experts: 4\nnum_experts_per_tok: 2\n"
                    "moe_intermediate_size: 8\nnorm_topk_prob: true\ndecoder_sparse_step: 1\nmlp_only_layers: []\n"
                    "tie_word_embeddings: false\n",
                    heads, kv_heads));
  }

  Words words(const std::string& sharding, int ranks, const std::string& model = "moe.yaml") const {
    return Words{"--model-config",
                 model,
                 "--use-torch-fsdp2",
                 "--fsdp2-config-path",
                 sharding,
                 "--nproc-per-node",
                 std::to_string(ranks),
                 "--data-path",
                 "data",
                 "--seq-length",
                 "16",
                 "--global-batch-size",
                 "4",
                 "--lr",
                 "0.01",
                 "--lr-decay-style",
                 "constant"} +
           evaluation_;
  }
  // A DeepSeek-V3, whose first layer is dense.
  static std::string latent_model(int layers) {
    return fmt::format(
        "model_type: deepseek_v3\nvocab_size: 256\nhidden_size: 16\nintermediate_size: 24\nnum_hidden_layers: {}\n"
        "num_attention_heads: 4\nnum_key_value_heads: 4\nmax_position_embeddings: 32\nrms_norm_eps: 1.0e-6\n"
        "n_routed_experts: 4\nn_shared_experts: 1\nnum_experts_per_tok: 2\nmoe_intermediate_size: 8\nn_group: 2\n"
        "topk_group: 1\nrouted_scaling_factor: 1.0\nfirst_k_dense_replace: 1\nnorm_topk_prob: true\nq_lora_rank: 8\n"
        "kv_lora_rank: 8\nqk_nope_head_dim: 4\nqk_rope_head_dim: 4\nv_head_dim: 4\ntie_word_embeddings: false\n",
        layers);
  }

  // Of every step.
  std::vector<double> losses(const std::string& name, const Words& more) const {
    const Outcome outcome = folder.run(Words{"train"} + more + Words{"--metrics-path", name});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::vector<double> values;
    for (const auto& line : folder.metrics(name)) values.push_back(line.at("loss"));
    return values;
  }
  static void expect_near(const std::vector<double>& a, const std::vector<double>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 2e-5) << i;
  }

  const std::string kSharding =
      "sharding_size: auto\nsub_modules_to_wrap: [model.embed_tokens, \"model.layers.{*}\", lm_head]\n";
  ProgramFolder folder;

 private:
  const Words evaluation_;
};

}  // namespace loom::test
