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

Json shape(const Words& flags) { return Json::parse(planned(flags).model.shape.value()); }

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
  EXPECT_EQ(Json::parse(*job.model.shape),
            Json::parse(R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 1024, "n_inner": 4096,
 "n_layer": 24, "n_head": 16, "n_positions": 1024, "layer_norm_epsilon": 1e-5, "attn_pdrop": 0.1, "embd_pdrop": 0.1,
 "resid_pdrop": 0.1, "vocab_size": 128, "initializer_range": 0.02, "tie_word_embeddings": true})"));
  EXPECT_THAT(job.written.without_effect, Not(::testing::Contains(HasSubstr("--num-layers"))));
}

TEST(ShapeFlags, DefaultsAreMegatrons) {
  const Words sizes = {"--num-layers", "1", "--num-attention-heads", "32", "--vocab-size", "151643"};
  EXPECT_EQ(shape(kRotary + sizes + Words{"--hidden-size", "4096"})["intermediate_size"], 10880);
  EXPECT_EQ(shape(kRotary + sizes + Words{"--hidden-size", "4096"})["vocab_size"], 151680);
  EXPECT_EQ(shape(sizes + Words{"--hidden-size", "64"})["n_inner"], 256);
}

TEST(ShapeFlags, WhatIsMissingIsNamedInOneRun) {
  EXPECT_EQ(
      refusal_of_plan({"--num-layers", "0", "--hidden-size", "8"}),
      "the model's flags: --num-attention-heads is not given; --num-layers is 0; use a whole number of at least 1; "
      "--vocab-size is not given; or give --model-config FILE");
  EXPECT_THAT(refusal_of_plan({}), HasSubstr("no model is given; use --model-config FILE"));
}

TEST(ShapeFlags, ThatFitNoFamilyAreNamed) {
  const Words sizes = {"--num-layers", "1", "--hidden-size", "8", "--num-attention-heads", "2", "--vocab-size", "9"};
  EXPECT_THAT(refusal_of_plan(sizes + Words{"--swiglu"}),
              HasSubstr("--swiglu fits no family: Llama, Qwen2 and Qwen3 also have --normalization RMSNorm, "
                        "--position-embedding-type rope, --disable-bias-linear, and GPT-2 has none of these flags"));
  EXPECT_THAT(refusal_of_plan(sizes + Words{"--position-embedding-type", "alibi"}),
              HasSubstr("--position-embedding-type alibi fits no family"));
  EXPECT_THAT(refusal_of_plan(sizes + Words{"--normalization", "RMSNorm", "--position-embedding-type", "rope",
                                            "--swiglu", "--disable-bias-linear"}),
              HasSubstr("--attention-dropout is 0.1 by default, and this family has no dropout; write 0"));
}

}  // namespace
}  // namespace loom::cli
