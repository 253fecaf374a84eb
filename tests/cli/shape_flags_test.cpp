// Promise: Megatron's shape flags make the configuration of the model that they make there: Llama 2, Qwen2.5, Qwen3 and
//          Megatron's own GPT example; what is missing or fits no family is named in one run.
// World:   command lines of plan; no file but a vocab.json is opened.
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tests/cli/parsed.h"
#include "tests/support/files.h"

namespace loom::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Json = nlohmann::json;

job::Job planned(const Words& flags) { return std::get<PlanArguments>(parsed(Words{"plan"} + flags)).train; }

std::string refusal_of_plan(const Words& flags) { return refusal(Words{"plan"} + flags); }

Json shape(const Words& flags) { return Json::parse(planned(flags).model.made_config.value()); }

const Words kRotary = {
    "--normalization",     "RMSNorm", "--position-embedding-type", "rope", "--swiglu", "--disable-bias-linear",
    "--attention-dropout", "0",       "--hidden-dropout",          "0.0"};

TEST(ShapeFlags, MakeLlama2) {
  EXPECT_EQ(shape(kRotary + Words{"--num-layers", "32", "--hidden-size", "4096", "--ffn-hidden-size", "11008",
                                  "--num-attention-heads", "32", "--max-position-embeddings", "4096", "--norm-epsilon",
                                  "1e-5", "--vocab-size", "32000", "--make-vocab-size-divisible-by", "1",
                                  "--untie-embeddings-and-output-weights"}),
            Json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
 "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
 "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": 32000,
 "initializer_range": 0.02, "tie_word_embeddings": false})"));
}

TEST(ShapeFlags, MakeQwen2AndQwen3) {
  const Words sizes = kRotary + Words{"--num-layers",
                                      "28",
                                      "--hidden-size",
                                      "1024",
                                      "--num-attention-heads",
                                      "16",
                                      "--group-query-attention",
                                      "--num-query-groups",
                                      "8",
                                      "--kv-channels",
                                      "128",
                                      "--rotary-base",
                                      "1000000",
                                      "--padded-vocab-size",
                                      "151936"};
  const Json qwen2 = shape(sizes + Words{"--add-qkv-bias"}), qwen3 = shape(sizes + Words{"--qk-layernorm"});
  EXPECT_EQ(qwen2["model_type"], "qwen2");
  EXPECT_EQ(qwen3["model_type"], "qwen3");
  EXPECT_EQ(qwen3["head_dim"], 128);
  EXPECT_EQ(qwen3["num_key_value_heads"], 8);
  EXPECT_EQ(qwen3["vocab_size"], 151936);
  EXPECT_EQ(qwen3["rope_theta"], 1e6);
  EXPECT_EQ(qwen3["tie_word_embeddings"], true);
}

TEST(ShapeFlags, MegatronsExampleIsAGpt2) {
  const auto folder = test::fresh_folder();
  test::write_file(folder / "vocab.json", R"({"a": 0, "b": 1, "ab": 2})");
  const Words flags = {
      "--num-layers", "24",           "--hidden-size", "1024",         "--num-attention-heads",
      "16",           "--seq-length", "1024",          "--vocab-file", (folder / "vocab.json").string(),
      "--merge-file", "merges.txt"};
  const job::Job job = planned(flags);
  EXPECT_EQ(Json::parse(*job.model.made_config),
            Json::parse(R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 1024, "n_inner": 4096,
 "n_layer": 24, "n_head": 16, "n_positions": 1024, "layer_norm_epsilon": 1e-5, "attn_pdrop": 0.1, "embd_pdrop": 0.1,
 "resid_pdrop": 0.1, "vocab_size": 128, "initializer_range": 0.02, "tie_word_embeddings": true})"));
  EXPECT_THAT(job.written.without_effect, Not(::testing::Contains(HasSubstr("--num-layers"))));
}

const Words kSmall = {"--num-layers", "4", "--hidden-size", "64", "--num-attention-heads", "4", "--vocab-size", "128"};

TEST(ShapeFlags, MakeQwen3Moe) {
  const Words experts =
      kRotary + kSmall +
      Words{"--qk-layernorm",   "--num-experts", "8", "--moe-router-topk", "3", "--moe-ffn-hidden-size", "32",
            "--moe-layer-freq", "([0]*1+[1]*3)"};
  Json json = shape(experts);
  EXPECT_EQ(json["model_type"], "qwen3_moe");
  EXPECT_EQ(json["num_experts"], 8);
  EXPECT_EQ(json["num_experts_per_tok"], 3);
  EXPECT_EQ(json["moe_intermediate_size"], 32);
  EXPECT_EQ(json["norm_topk_prob"], true);
  EXPECT_EQ(json["mlp_only_layers"], Json::array({0}));
  json = shape(experts + Words{"--moe-layer-freq", "2", "--first-k-dense-replace", "2", "--moe-router-pre-softmax"});
  EXPECT_EQ(json["mlp_only_layers"], Json::array({0, 1, 3}));  // Megatron counts from layer 0
  EXPECT_EQ(json["norm_topk_prob"], false);
  EXPECT_THAT(refusal_of_plan(experts + Words{"--moe-layer-freq", "[0]*1+[1]*2"}),
              HasSubstr("--moe-layer-freq has 3 layers, and the model 4; write one number per layer"));
  EXPECT_THAT(refusal_of_plan(experts + Words{"--moe-layer-freq", "[1]*9999999999999"}),
              HasSubstr("--moe-layer-freq is [1]*9999999999999; write a whole number, or a list"));
  EXPECT_THAT(refusal_of_plan(kRotary + kSmall + Words{"--num-experts", "8"}),
              HasSubstr("--num-experts fits Qwen3-MoE alone, which also has --qk-layernorm"));
}

TEST(ShapeFlags, ScaleRotaryPositions) {
  const Words flags = kRotary + kSmall;
  EXPECT_EQ(shape(flags + Words{"--use-rope-scaling"})["rope_scaling"],
            Json::parse(R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
 "original_max_position_embeddings": 8192})"));
  EXPECT_EQ(shape(flags + Words{"--rope-scaling-type", "yarn", "--rope-scaling-factor", "40", "--rope-scaling-mscale",
                                "0.707", "--rope-scaling-mscale-all-dim", "1",
                                "--rope-scaling-original-max-position-embeddings", "4096"})["rope_scaling"],
            Json::parse(R"({"rope_type": "yarn", "factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 0.707,
 "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096})"));
  EXPECT_EQ(shape(flags + Words{"--rotary-seq-len-interpolation-factor", "2"})["rope_scaling"],
            Json::parse(R"({"rope_type": "linear", "factor": 2.0})"));
  const Words longrope = flags + Words{"--rope-scaling-type", "longrope", "--short-factor", "1,1.5,1,1,1,1,1,2"};
  EXPECT_THAT(refusal_of_plan(longrope), HasSubstr("--long-factor is not given, and --rope-scaling-type longrope"));
  EXPECT_EQ(shape(longrope + Words{"--long-factor", "1,1,1,1,1,1,1,4"})["rope_scaling"]["short_factor"][1], 1.5);
  EXPECT_THAT(refusal_of_plan(longrope + Words{"--long-factor", "1,x"}),
              HasSubstr("--long-factor has x; write numbers with commas between them"));
}

TEST(ShapeFlags, DefaultsAreMegatrons) {
  const Words sizes = {"--num-layers", "1", "--num-attention-heads", "32", "--vocab-size", "151643"};
  EXPECT_EQ(shape(kRotary + sizes + Words{"--hidden-size", "4096"})["intermediate_size"], 10880);
  EXPECT_EQ(shape(kRotary + sizes + Words{"--hidden-size", "4096"})["vocab_size"], 151680);
  EXPECT_EQ(shape(sizes + Words{"--hidden-size", "64"})["n_inner"], 256);
}

TEST(ShapeFlags, WhatIsMissingIsNamedInOneRun) {
  EXPECT_EQ(
      refusal_of_plan({"--hidden-size", "8"}),
      "the model's flags: --num-attention-heads is not given; --num-layers is not given; --vocab-size is not given; or "
      "give --model-config FILE");
  EXPECT_THAT(refusal_of_plan({"--num-layers", "0"}), HasSubstr("--num-layers is 0; use a whole number"));
  EXPECT_THAT(refusal_of_plan({}), HasSubstr("no model is given; use --model-config FILE"));
}

TEST(ShapeFlags, ThatFitNoFamilyAreNamed) {
  const Words sizes = {"--num-layers", "1", "--hidden-size", "8", "--num-attention-heads", "2", "--vocab-size", "9"};
  EXPECT_THAT(refusal_of_plan(sizes + Words{"--swiglu"}),
              HasSubstr("--swiglu fits no family: Llama, Qwen2, Qwen3 and Qwen3-MoE also have --normalization RMSNorm, "
                        "--position-embedding-type rope, --disable-bias-linear, and GPT-2 has none of these flags"));
  EXPECT_THAT(refusal_of_plan(sizes + Words{"--position-embedding-type", "alibi"}),
              HasSubstr("--position-embedding-type alibi fits no family"));
  EXPECT_THAT(refusal_of_plan(sizes + Words{"--normalization", "RMSNorm", "--position-embedding-type", "rope",
                                            "--swiglu", "--disable-bias-linear"}),
              HasSubstr("--attention-dropout is 0.1 by default, and this family has no dropout; write 0"));
}

}  // namespace
}  // namespace loom::cli
