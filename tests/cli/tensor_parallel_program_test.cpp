// Promise: matrices that ranks share train as whole ones, with and without sequence parallelism, beside experts and
//          sequences that ranks share; checkpoints are resumed on other meshes; the model is exported and generated
//          from; plans and files of other tools know the axis; what does not fit is refused before anything is built.
// World:   the built program; a Llama, a Qwen3-MoE, a DeepSeek-V3 and a GPT-2 of two layers; 1, 2, 4 and 8 ranks.
#include <gmock/gmock.h>

#include "tests/cli/axes_program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;
using json = nlohmann::ordered_json;

class TensorParallel : public AxesProgram {
 protected:
  TensorParallel() : AxesProgram(4, 2, {"--eval-iters", "0"}) {
    folder.write("plain.yaml", kSharding);
    folder.write("tp.yaml", kSharding + "tensor_parallel_size: 2\n");
    folder.write("sp.yaml", kSharding + "tensor_parallel_size: 2\nsequence_parallel: true\n");
    folder.write("gathered.yaml", kSharding + "tensor_parallel_size: 2\nloss_parallel: false\n");
    folder.write("llama.yaml",
                 "model_type: llama\nvocab_size: 256\nhidden_size: 16\nintermediate_size: 24\nnum_hidden_layers: 2\n"
                 "num_attention_heads: 4\nnum_key_value_heads: 2\nmax_position_embeddings: 32\nrms_norm_eps: 1.0e-6\n"
                 "attention_bias: true\nmlp_bias: true\ntie_word_embeddings: false\n");
    folder.write("latent.yaml", latent_model(2));
    folder.write("bare.yaml", "sharding_size: auto\nsub_modules_to_wrap: [\"transformer.h.{*}\"]\n");
    folder.write("gpt2.yaml",
                 "model_type: gpt2\narchitectures: [GPT2LMHeadModel]\nvocab_size: 257\nn_embd: 16\nn_layer: 2\n"
                 "n_head: 4\nn_positions: 32\n");
  }

  std::vector<double> one(const std::string& model) const {
    return losses("one.jsonl", words("plain.yaml", 1, model) + kFour);
  }
  std::string refused(const std::string& text, const Words& more = {}, const std::string& model = "llama.yaml") const {
    folder.write("bad.yaml", kSharding + text);
    const Outcome outcome = folder.run(Words{"train"} + words("bad.yaml", 2, model) + kFour + more);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    return outcome.err;
  }

  const Words kFour = {"--train-iters", "4"};
};

TEST_F(TensorParallel, TrainsAsWholeMatrices) {
  for (const char* model : {"llama.yaml", "moe.yaml", "latent.yaml"}) {
    const std::vector<double> whole = one(model);
    ASSERT_EQ(whole.size(), 4U);
    for (const char* sharding : {"tp.yaml", "sp.yaml", "gathered.yaml"}) {
      for (const int ranks : {2, 4}) {
        SCOPED_TRACE(fmt::format("{} {} {}", model, sharding, ranks));
        expect_near(losses("tp.jsonl", words(sharding, ranks, model) + kFour), whole);
      }
    }
  }
}

// Of Llama, Qwen3-MoE, DeepSeek-V3 and GPT-2.
TEST_F(TensorParallel, SlicesBesideProductsHaveTheBitsOfWholeCollectives) {
  const std::string layers = "sharding_size: auto\nsub_modules_to_wrap: [\"model.layers.{*}\"]\n";
  const std::string blocks = "sharding_size: auto\nsub_modules_to_wrap: [\"transformer.h.{*}\"]\n";
  for (const auto& [model, groups] :
       {std::pair{"llama.yaml", layers}, {"moe.yaml", layers}, {"latent.yaml", layers}, {"gpt2.yaml", blocks}}) {
    for (const int ranks : {2, 4}) {
      const std::string shared =
          groups + fmt::format("tensor_parallel_size: {}\nsequence_parallel: true\n", ranks == 2 ? 2 : 4);
      folder.write("whole.yaml", shared);
      const std::vector<double> whole = losses("whole.jsonl", words("whole.yaml", ranks, model) + kFour);
      for (const char* more : {"overlap_slices: 2\n", "overlap_slices: 4\nregather_colwise_input: true\n",
                               "regather_colwise_input: true\n"}) {
        folder.write("sliced.yaml", shared + more);
        for (const char* executor : {"inline", "threaded"}) {
          SCOPED_TRACE(fmt::format("{} {} {} {}", model, ranks, more, executor));
          EXPECT_EQ(
              losses("sliced.jsonl", words("sliced.yaml", ranks, model) + kFour + Words{"--device-executor", executor}),
              whole);
        }
      }
    }
  }
}

TEST_F(TensorParallel, SlicesGoWithRecomputeOffloadAdaptersAndFrozenLayers) {
  const std::string shared = kSharding + "tensor_parallel_size: 2\nsequence_parallel: true\n";
  const std::string sliced = "overlap_slices: 2\nregather_colwise_input: true\n";
  for (const std::string& more :
       {std::string("recompute_modules: [\"model.layers.{*}\"]\n"),
        std::string("recompute_modules: [\"model.layers.{*}\"]\nuse_reentrant: false\n"),
        std::string("recompute_modules: [\"model.layers.{*}\"]\nuse_reentrant: false\nrecompute_keep: selected_ops\n"),
        std::string("recompute_modules: [\"model.layers.{*}.mlp\", \"model.layers.{*}.self_attn\"]\n"
                    "use_reentrant: false\n"),
        std::string("offload_to_cpu: true\n"), std::string("activation_offload_modules: [\"model.layers.{*}.mlp\"]\n"),
        std::string("freeze: [\"model.layers.{*}.self_attn.q_proj\", \"model.layers.{*}.mlp\"]\n"),
        std::string("chunk_mbs_modules: [\"model.layers.{*}\"]\n"), std::string("param_dtype: bf16\n")}) {
    SCOPED_TRACE(more);
    folder.write("whole.yaml", shared + more);
    folder.write("sliced.yaml", shared + more + sliced);
    const Words two = {"--micro-batch-size", "2"};
    EXPECT_EQ(losses("sliced.jsonl", words("sliced.yaml", 4, "llama.yaml") + kFour + two),
              losses("whole.jsonl", words("whole.yaml", 4, "llama.yaml") + kFour + two));
  }
  folder.write("whole.yaml", shared);
  folder.write("sliced.yaml", shared + sliced);
  const Words adapters = {"--lora-r", "4", "--lora-alpha", "8", "--lora-target-modules", "q_proj", "up_proj", "o_proj"};
  const Words norms = {"--recompute-norm", "--recompute-activation-function"};
  for (const Words& more : {adapters, norms}) {
    SCOPED_TRACE(more.front());
    EXPECT_EQ(losses("sliced.jsonl", words("sliced.yaml", 2, "llama.yaml") + kFour + more),
              losses("whole.jsonl", words("whole.yaml", 2, "llama.yaml") + kFour + more));
  }
}

// A layer that is a group of its own reads a whole input.
TEST_F(TensorParallel, SlicesGoWithGroupsInsideABlock) {
  const std::string shared =
      "sharding_size: auto\nsub_modules_to_wrap: [\"model.layers.{*}.self_attn.q_proj\", \"model.layers.{*}.mlp\", "
      "\"model.layers.{*}\"]\ntensor_parallel_size: 2\nsequence_parallel: true\n";
  folder.write("whole.yaml", shared);
  folder.write("sliced.yaml", shared + "overlap_slices: 4\n");
  EXPECT_EQ(losses("sliced.jsonl", words("sliced.yaml", 4, "llama.yaml") + kFour),
            losses("whole.jsonl", words("whole.yaml", 4, "llama.yaml") + kFour));
}

// Rows of 18 are padded to 24: 6 tokens for each of the 4 ranks that share them.
TEST_F(TensorParallel, SlicesDivideWhatPaddingLeaves) {
  const std::string shared = kSharding + "tensor_parallel_size: 2\nsequence_parallel: true\nring_attention_size: 2\n";
  folder.write("whole.yaml", shared);
  folder.write("sliced.yaml", shared + "overlap_slices: 3\n");
  const Words odd = kFour + Words{"--seq-length", "18"};
  EXPECT_EQ(losses("sliced.jsonl", words("sliced.yaml", 4, "llama.yaml") + odd),
            losses("whole.jsonl", words("whole.yaml", 4, "llama.yaml") + odd));
}

TEST_F(TensorParallel, FlagsOfMindSpeedChooseSlices) {
  folder.write("sp.yaml", kSharding + "tensor_parallel_size: 2\nsequence_parallel: true\n");
  const std::vector<double> whole = losses("sp.jsonl", words("sp.yaml", 2, "llama.yaml") + kFour);
  const Words two = {"--tensor-model-parallel-size", "2", "--sequence-parallel"};
  for (const Words& flags :
       {Words{"--use-ascend-mc2"}, Words{"--use-ascend-coc", "--coc-parallel-num", "8", "--coc-mode", "-1"}}) {
    EXPECT_EQ(losses("flags.jsonl", words("plain.yaml", 2, "llama.yaml") + kFour + two + flags), whole);
  }
  EXPECT_THAT(refused("", {"--tensor-model-parallel-size", "2", "--use-ascend-mc2"}),
              HasSubstr("--use-ascend-mc2: overlap_slices is 4, but sequence_parallel is false; write "
                        "sequence_parallel: true, or remove the key"));
  EXPECT_THAT(refused("", two + Words{"--use-ascend-mc2", "--use-ascend-coc"}),
              HasSubstr("--use-ascend-mc2 and --use-ascend-coc both choose the slices of a product; remove one"));
  EXPECT_THAT(refused("", two + Words{"--coc-parallel-num", "2"}),
              HasSubstr("--coc-parallel-num is of --use-ascend-coc; add that, or remove it"));
  EXPECT_THAT(refused("", two + Words{"--use-ascend-coc", "--coc-parallel-num", "3"}),
              HasSubstr("--coc-parallel-num is 3; use 1, 2, 4 or 8"));
  EXPECT_THAT(refused("", two + Words{"--use-ascend-coc", "--coc-fused-kernel"}),
              HasSubstr("--coc-fused-kernel is a kernel of one product and its collective, which is not built"));
}

TEST_F(TensorParallel, SlicesThatDoNotFitAreRefused) {
  EXPECT_THAT(refused("tensor_parallel_size: 2\noverlap_slices: 2\n"),
              HasSubstr("bad.yaml:4:17: overlap_slices is 2, but sequence_parallel is false; write sequence_parallel: "
                        "true, or remove the key"));
  EXPECT_THAT(refused("tensor_parallel_size: 2\nregather_colwise_input: true\n"),
              HasSubstr("bad.yaml:4:25: regather_colwise_input is true, but sequence_parallel is false; write "
                        "sequence_parallel: true, or remove the key"));
  const std::string shared = "tensor_parallel_size: 2\nsequence_parallel: true\n";
  EXPECT_THAT(refused(shared + "overlap_slices: 3\n"),
              HasSubstr("bad.yaml:5:17: overlap_slices is 3, but a rank has 8 tokens of --seq-length 16 between its "
                        "blocks; use a number that divides 8"));
  EXPECT_THAT(refused(shared + "regather_colwise_input: true\nrecompute_modules: [\"model.layers.{*}.mlp.up_proj\"]\n"),
              HasSubstr("bad.yaml:5:25: regather_colwise_input is true, but 'model.layers.0.mlp.up_proj' is recomputed "
                        "by itself and keeps its whole input; recompute the block around it, or remove the key"));
}

TEST_F(TensorParallel, TheEmbeddingMayBeTheOutputLayer) {
  std::string tied = folder.read("llama.yaml");
  tied.replace(tied.find("embeddings: false"), 17, "embeddings: true");
  folder.write("tied.yaml", tied);
  const std::string layers = "sharding_size: auto\nsub_modules_to_wrap: [\"model.layers.{*}\"]\n";
  folder.write("layers.yaml", layers);
  folder.write("shared.yaml", layers + "tensor_parallel_size: 2\nsequence_parallel: true\n");
  expect_near(losses("shared.jsonl", words("shared.yaml", 4, "tied.yaml") + kFour),
              losses("whole.jsonl", words("layers.yaml", 1, "tied.yaml") + kFour));
}

TEST_F(TensorParallel, KeyValueHeadsHaveCopiesWhereThereAreFewer) {
  folder.write("four.yaml", kSharding + "tensor_parallel_size: 4\nsequence_parallel: true\n");
  expect_near(losses("four.jsonl", words("four.yaml", 4, "llama.yaml") + kFour), one("llama.yaml"));
}

TEST_F(TensorParallel, JoinedMatricesAreCutEachAndDropoutIsThatOfOneRank) {
  const std::vector<double> whole = losses("one.jsonl", words("bare.yaml", 1, "gpt2.yaml") + kFour);
  for (const char* more : {"", "sequence_parallel: true\n", "loss_parallel: false\n"}) {
    SCOPED_TRACE(more);
    folder.write("more.yaml",
                 "sharding_size: auto\nsub_modules_to_wrap: [\"transformer.h.{*}\"]\n"
                 "tensor_parallel_size: 2\n" +
                     std::string(more));
    for (const int ranks : {2, 4}) {
      expect_near(losses("tp.jsonl", words("more.yaml", ranks, "gpt2.yaml") + kFour), whole);
    }
  }
}

// GPT-2's vocabulary, 50257, is odd, and its q, k and v are one matrix.
TEST_F(TensorParallel, JoinedMatricesAndOddVocabulariesAreSavedResumedAndGeneratedFrom) {
  const std::string wrapped = "sharding_size: auto\nsub_modules_to_wrap: [\"transformer.h.{*}\"]\n";
  folder.write("whole.yaml", wrapped);
  folder.write("two.yaml", wrapped + "tensor_parallel_size: 2\nsequence_parallel: true\n");
  folder.write("four.yaml", wrapped + "tensor_parallel_size: 4\n");
  const Words saved = {"--train-iters", "6", "--save", "out", "--save-interval", "3", "--ckpt-format", "torch_dcp"};
  const Words from = {"--train-iters", "6", "--load", "out", "--ckpt-step", "3"};
  const std::vector<double> all = losses("all.jsonl", words("two.yaml", 4, "gpt2.yaml") + saved);
  ASSERT_EQ(all.size(), 6U);
  expect_near(all, losses("one.jsonl", words("whole.yaml", 1, "gpt2.yaml") + Words{"--train-iters", "6"}));
  const std::vector<double> last(all.begin() + 3, all.end());
  EXPECT_EQ(losses("same.jsonl", words("two.yaml", 4, "gpt2.yaml") + from), last);
  for (const auto& [sharding, ranks] :
       {std::pair{"two.yaml", 2}, {"four.yaml", 4}, {"whole.yaml", 1}, {"whole.yaml", 2}}) {
    SCOPED_TRACE(fmt::format("{} {}", sharding, ranks));
    expect_near(losses(fmt::format("{}{}.jsonl", sharding, ranks), words(sharding, ranks, "gpt2.yaml") + from), last);
  }
  for (const auto& [sharding, ranks, out] : {std::tuple{"two.yaml", 4, "hf"}, {"whole.yaml", 2, "w"}}) {
    const Outcome model =
        folder.run(Words{"train"} + words(sharding, ranks, "gpt2.yaml") + kFour + Words{"--save", out});
    ASSERT_EQ(model.exit_code, 0) << model.err;
  }
  const Words prompt = {"--prompt", "1 times", "--max-new-tokens", "8"};
  EXPECT_EQ(folder.run(Words{"generate", "hf"} + prompt).out, folder.run(Words{"generate", "w"} + prompt).out);
}

TEST_F(TensorParallel, AdaptersAreCutWithTheirMatrices) {
  const Words adapters = {"--lora-r", "4", "--lora-alpha", "8", "--lora-dropout", "0.3"};
  for (const auto& [model, targets] :
       {std::pair{"llama.yaml", Words{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}},
        {"gpt2.yaml", Words{"c_attn", "c_proj", "c_fc"}}}) {
    const bool is_gpt2 = targets.size() == 3;
    const std::string base =
        is_gpt2 ? "sharding_size: auto\nsub_modules_to_wrap: [\"transformer.h.{*}\"]\n" : kSharding;
    folder.write("base.yaml", base);
    const Words tuned = adapters + Words{"--lora-target-modules"} + targets + kFour;
    const std::vector<double> whole = losses("one.jsonl", words("base.yaml", 1, model) + tuned);
    for (const char* more : {"", "sequence_parallel: true\n"}) {
      SCOPED_TRACE(fmt::format("{} {}", model, more));
      folder.write("more.yaml", base + "tensor_parallel_size: 2\n" + more);
      expect_near(losses("tp.jsonl", words("more.yaml", 4, model) + tuned + Words{"--save", "adapter"}), whole);
    }
  }
}

TEST_F(TensorParallel, RowsWhoseLengthDoesNotDivideArePadded) {
  for (const char* model : {"llama.yaml", "moe.yaml"}) {
    const Words odd = kFour + Words{"--seq-length", "13"};
    expect_near(losses("sp.jsonl", words("sp.yaml", 2, model) + odd),
                losses("one.jsonl", words("plain.yaml", 1, model) + odd));
  }
}

TEST_F(TensorParallel, GoesWithReplicasSharedSequencesAndSharedExperts) {
  const std::vector<double> whole = one("moe.yaml");
  const std::string tensor = "tensor_parallel_size: 2\nsequence_parallel: true\n";
  const std::string shared = "expert_parallel_size: 4\nmoe_modules: [\"model.layers.{*}.mlp.experts\"]\n";
  for (const std::string& more : {std::string("ring_attention_size: 2\n"), std::string("ulysses_parallel_size: 2\n"),
                                  shared, shared + "ring_attention_size: 2\n"}) {
    SCOPED_TRACE(more);
    folder.write("more.yaml", kSharding + tensor + more);
    expect_near(losses("more.jsonl", words("more.yaml", 8, "moe.yaml") + kFour), whole);
  }
  std::string hybrid = kSharding;
  hybrid.replace(hybrid.find("auto"), 4, "2");
  folder.write("hybrid.yaml", hybrid + tensor);
  expect_near(losses("hybrid.jsonl", words("hybrid.yaml", 8, "moe.yaml") + kFour), whole);
}

TEST_F(TensorParallel, IsTheSameWithEveryExecutorPrefetchRecomputeAndOffload) {
  const Words sharded = words("sp.yaml", 4, "llama.yaml") + kFour;
  const std::vector<double> plain = losses("plain.jsonl", sharded);
  EXPECT_EQ(losses("inline.jsonl", sharded + Words{"--device-executor", "inline"}), plain);
  for (const char* reentrant : {"true", "false"}) {
    folder.write("more.yaml", kSharding +
                                  "tensor_parallel_size: 2\nsequence_parallel: true\nnum_to_forward_prefetch: 1\n"
                                  "recompute_modules: [\"model.layers.{*}\"]\nuse_reentrant: " +
                                  reentrant + "\n");
    EXPECT_EQ(losses("more.jsonl", words("more.yaml", 4, "llama.yaml") + kFour), plain);
  }
  folder.write("host.yaml", kSharding + "tensor_parallel_size: 2\nsequence_parallel: true\noffload_to_cpu: true\n");
  expect_near(losses("host.jsonl", words("host.yaml", 4, "llama.yaml") + kFour), plain);
}

TEST_F(TensorParallel, MegatronsFlagsSayItToo) {
  const std::vector<double> file = losses("file.jsonl", words("sp.yaml", 4, "llama.yaml") + kFour);
  EXPECT_EQ(losses("flags.jsonl", words("plain.yaml", 4, "llama.yaml") + kFour +
                                      Words{"--tensor-model-parallel-size", "2", "--sequence-parallel"}),
            file);
  // Megatron's scripts write both beside one rank.
  EXPECT_EQ(losses("one.jsonl", words("plain.yaml", 1, "llama.yaml") + kFour +
                                    Words{"--tensor-model-parallel-size", "1", "--sequence-parallel"}),
            one("llama.yaml"));
}

TEST_F(TensorParallel, TheLossInChunksIsTheSame) {
  const std::vector<double> whole = one("llama.yaml");
  expect_near(losses("chunks.jsonl", words("sp.yaml", 2, "llama.yaml") + kFour + Words{"--loss-chunk-size", "4"}),
              whole);
}

TEST_F(TensorParallel, IsSavedResumedExportedAndGeneratedFrom) {
  const Words saved = {"--train-iters", "6", "--save", "out", "--save-interval", "3", "--ckpt-format", "torch_dcp"};
  const Words from = {"--train-iters", "6", "--load", "out", "--ckpt-step", "3"};
  folder.write("four.yaml", kSharding + "tensor_parallel_size: 4\n");
  const std::vector<double> all = losses("all.jsonl", words("sp.yaml", 4, "llama.yaml") + saved);
  ASSERT_EQ(all.size(), 6U);
  const std::vector<double> last(all.begin() + 3, all.end());
  EXPECT_EQ(losses("same.jsonl", words("sp.yaml", 4, "llama.yaml") + from), last);
  for (const auto& [sharding, ranks] :
       {std::pair{"tp.yaml", 2}, {"four.yaml", 4}, {"plain.yaml", 1}, {"plain.yaml", 2}}) {
    SCOPED_TRACE(sharding);
    expect_near(losses(fmt::format("{}{}.jsonl", sharding, ranks), words(sharding, ranks, "llama.yaml") + from), last);
  }
  const Outcome model = folder.run(Words{"train"} + words("sp.yaml", 4, "llama.yaml") + kFour + Words{"--save", "hf"});
  ASSERT_EQ(model.exit_code, 0) << model.err;
  const Outcome whole =
      folder.run(Words{"train"} + words("plain.yaml", 2, "llama.yaml") + kFour + Words{"--save", "w"});
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_EQ(folder.read("hf/model.safetensors").size(), folder.read("w/model.safetensors").size());
  const Words prompt = {"--prompt", "1 times", "--max-new-tokens", "8"};
  EXPECT_EQ(folder.run(Words{"generate", "hf"} + prompt).out, folder.run(Words{"generate", "w"} + prompt).out);
  const Outcome converted = folder.run(
      {"convert", "dcp-to-hf", "--load-dir", "out/iter_0000006", "--save-dir", "again", "--model-assets-dir", "hf"});
  EXPECT_EQ(converted.exit_code, 0) << converted.err;
}

TEST_F(TensorParallel, IsPlannedWithItsCollectives) {
  const auto plan = [&](const std::string& sharding) {
    const Outcome outcome =
        folder.run(Words{"plan"} + words(sharding, 1, "llama.yaml") +
                   Words{"--world-size", "16", "--global-batch-size", "16", "--device", "h200", "--json", "-"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return json::parse(outcome.out);
  };
  const json tensor = plan("sp.yaml"), whole = plan("plain.yaml");
  EXPECT_EQ(tensor.at("parameters"), whole.at("parameters"));
  EXPECT_THAT(tensor.dump(), HasSubstr("reduce_scatter"));
}

TEST_F(TensorParallel, WhatDoesNotFitIsRefusedFirst) {
  EXPECT_THAT(refused("tensor_parallel_size: 3\n"),
              HasSubstr("bad.yaml:3:23: tensor_parallel_size is 3, but 2 ranks are running; use 1 or 2"));
  EXPECT_THAT(refused("sequence_parallel: true\n"),
              HasSubstr("bad.yaml:3:20: sequence_parallel is true, but tensor_parallel_size is 1; use 2 or more, or "
                        "remove the key"));
  EXPECT_THAT(
      refused("tensor_parallel_size: 2\ncolwise_parallel: [model.norm]\n"),
      HasSubstr("'model.norm' is a RMSNorm, and tensor parallelism cuts linear layers; take it out of the plan"));
  EXPECT_THAT(refused("tensor_parallel_size: 2\n", {"--lora-target-modules", "lm_head"}),
              HasSubstr("'lm_head' is a LoraLinear, and tensor parallelism shares the vocabulary of a Linear; take it "
                        "out of the modules with adapters"));
  folder.write("three.yaml",
               "model_type: llama\nvocab_size: 256\nhidden_size: 24\nintermediate_size: 24\nnum_hidden_layers: 1\n"
               "num_attention_heads: 3\nnum_key_value_heads: 3\nmax_position_embeddings: 32\nrms_norm_eps: 1.0e-6\n"
               "tie_word_embeddings: false\n");
  EXPECT_THAT(refused("tensor_parallel_size: 2\n", {}, "three.yaml"),
              HasSubstr("2 ranks cannot share 'model.layers.0.self_attn.q_proj', which has 3 heads; use a "
                        "tensor_parallel_size that divides 3"));
  folder.write("eight.yaml", kSharding + "tensor_parallel_size: 8\n");
  const Outcome eight = folder.run(Words{"train"} + words("eight.yaml", 8, "llama.yaml") + kFour);
  EXPECT_EQ(eight.exit_code, 2);
  EXPECT_THAT(eight.err, HasSubstr("8 ranks cannot share 'model.layers.0.self_attn.q_proj', which has 4 heads; use a "
                                   "tensor_parallel_size that divides 4"));
}

}  // namespace
}  // namespace loom::test
