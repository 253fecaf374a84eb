// Promise: MindSpeed-LLM's file means here what it means there: defaults, precedence of the command line, steps,
//          schedule; what its tool computes wrongly is refused with what to write.
// World:   8 ranks.
#include "tests/dialects/models.h"
#include "tests/dialects/translated.h"

namespace loom::dialects {
namespace {

using test::message_of;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kSign = "optimization: {}\n";

std::filesystem::path samples(int count) {
  const auto prefix = test::fresh_folder() / "d";
  std::string index("MMIDIDX\0\0", 9);
  index += std::string("\1\0\0\0\0\0\0\0\4", 9);
  index += std::string(1, static_cast<char>(count)) + std::string(7, '\0');
  test::write_file(prefix.string() + ".idx", index);
  return prefix;
}

TEST(Llm, WithoutASizeNothingIsSharded) {
  const Translation file = read(kSign);
  EXPECT_THAT(file.refused, IsEmpty());
  EXPECT_EQ(key_in(file, "sharding_size"), "1");
  EXPECT_THAT(file.notes, Contains(HasSubstr("nothing is sharded over 8 ranks; write fsdp_size: 8")));
  EXPECT_EQ(key_in(file, "sub_modules_to_wrap"), "[\"model.layers.{*}\", model.embed_tokens, lm_head]");
  EXPECT_EQ(key_in(file, "param_dtype"), "bf16");
  EXPECT_EQ(flag_in(file, "--lr"), "1e-5");
  EXPECT_EQ(flag_in(file, "--adam-beta2"), "0.95");
  EXPECT_EQ(flag_in(file, "--micro-batch-size"), "8");
}

TEST(Llm, ASizeThatDoesNotDivideTheRanksIsRefused) {
  EXPECT_EQ(refusal("parallel:\n  fsdp_size: 3\n"),
            "f.yaml:2:14: parallel.fsdp_size is 3; 8 ranks are no multiple of it; write a divisor");
}

TEST(Llm, TheCommandLineWins) {
  const std::string text =
      "training:\n  max_steps: 5\n  lr: 1e-4\n  disable_shuffling: no\noptimization:\n  use_flash_attn: f\n";
  const Translation file =
      read(text, {.overrides = {"--training.lr", "2e-4", "--training.seed=7", "--training.lr", "3e-4", "--data.dataset",
                                R"({"file_name": "a.jsonl"})", "--parallel.fsdp_modules", "lm_head", "model.norm",
                                "--parallel.ignored_modules", "null", "--optimization.use_flash_attn"}});
  EXPECT_THAT(file.refused, IsEmpty());
  EXPECT_EQ(flag_in(file, "--lr"), "3e-4");
  EXPECT_EQ(origin_of(file, "--lr"), "command line training.lr");
  EXPECT_EQ(flag_in(file, "--seed"), "7");
  EXPECT_EQ(flag_in(file, "--use-flash-attn"), "on");
  EXPECT_EQ(key_in(file, "sub_modules_to_wrap"), "[lm_head, model.norm]");
  EXPECT_EQ(flag_in(file, "--no-shuffle"), "none");
  EXPECT_THAT(file.notes, Contains(HasSubstr("shardloom preprocess")));
}

TEST(Llm, AnUnknownNameAndAPrefixAreRefused) {
  EXPECT_EQ(refusal(kSign, {.overrides = {"--training.learning_rate", "1"}}).substr(0, 62),
            "command line: unknown key 'training.learning_rate'; training h");
  EXPECT_THAT(refusal(kSign, {.overrides = {"--training.max_step", "1"}}),
              HasSubstr("command line: unknown key 'training.max_step'; did you mean training.max_steps?"));
  EXPECT_EQ(refusal("optimization:\n  indexer_loss_coeff: 1.0\n"),
            "f.yaml:2:3: unknown key 'optimization.indexer_loss_coeff'; write training.indexer_loss_coeff");
}

TEST(Llm, ACheckpointIsSavedAfterEachEpochOfKnownData) {
  const std::string text = "training:\n  output_dir: out\n  save_steps: 4\n  save_epochs: 2\n";
  EXPECT_EQ(flag_in(read(text, {.flags = {{"--data-path", samples(100).string()}}}), "--save-epochs"), "2");
  EXPECT_EQ(flag_in(read(text), "--save-epochs"), "none");
}

TEST(Llm, TheLossIsTheMeanOfMicroBatchesOrOfTokens) {
  const auto reduction = [](const std::string& stage, const std::string& key) {
    return flag_in(read("training:\n  max_steps: 5\n  stage: " + stage + "\n" + key +
                        "data:\n  data_manager_type: " + (stage == "pt" ? "mg\n" : "lf\n")),
                   "--loss-reduction");
  };
  EXPECT_EQ(reduction("pt", ""), "micro_batch");
  EXPECT_EQ(reduction("pt", "  calculate_per_token_loss: true\n"), "per_token");
  EXPECT_EQ(reduction("sft", ""), "per_token");
}

TEST(Llm, StepsAreTheSmallerOfMaxStepsAndTheEpochs) {
  const std::string data = samples(100).string();
  const auto steps = [&](const std::string& most) {
    return flag_in(
        read("training:\n  per_device_train_batch_size: 1\n  num_train_epochs: 2.5\n  max_steps: " + most + "\n",
             {.flags = {{"--data-path", data}}}),
        "--train-iters");
  };
  EXPECT_EQ(steps("5"), "5");
  EXPECT_EQ(steps("500"), "26");  // two epochs of ceil(100 / 8)
  EXPECT_EQ(steps("-1"), "26");
  const Translation blind = read("training:\n  max_steps: 500\n");
  EXPECT_EQ(flag_in(blind, "--train-iters"), "500");
  EXPECT_THAT(blind.notes, Contains(HasSubstr("there the loop ends earlier where 3 epochs have fewer steps")));
}

TEST(Llm, WarmUpIsAWholeNumberOfSteps) {
  const Translation file = read("training:\n  max_steps: 50\n  warmup_ratio: 0.05\n");
  EXPECT_EQ(flag_in(file, "--lr-warmup-iters"), "2");
}

TEST(Llm, WhatItsToolComputesWronglyIsRefused) {
  EXPECT_EQ(refusal("training:\n  max_steps: 5\n  lr_scheduler_type: linear\n  min_lr: 1e-6\n"),
            "f.yaml:4:11: training.min_lr is 1e-6; linear decays to 0 there, whatever min_lr is; write 0");
  EXPECT_EQ(flag_in(read("training:\n  max_steps: 5\n  lr_scheduler_type: linear\n"), "--min-lr"), "0");
  EXPECT_EQ(
      refusal("training:\n  max_steps: 5\n  max_grad_norm: 0\n"),
      "f.yaml:3:18: training.max_grad_norm is 0; there it multiplies all gradients by 0; for no clipping write 1e30");
}

TEST(Llm, StagesWantTheirManagerOfData) {
  EXPECT_EQ(flag_in(read(kSign), "--stage"), "sft");
  EXPECT_EQ(flag_in(read("training:\n  stage: pt\n  max_steps: 1\ndata:\n  data_manager_type: mg\n",
                         {.flags = {{"--data-path", samples(8).string()}}}),
                    "--split"),
            "100,0,0");
  EXPECT_THAT(refusal("training:\n  stage: pt\n  max_steps: 1\n"),
              HasSubstr("data.data_manager_type is lf; stage pt wants mg"));
}

TEST(Llm, APrefixOfPairsIsTheDataAndOtherFilesArePreprocessed) {
  const std::string prefix = samples(4).string();
  EXPECT_EQ(flag_in(read("data:\n  dataset: {file_name: " + prefix + "}\n" + kSign), "--data-path"), prefix);
  const Translation raw = read(
      "data:\n  dataset: alpaca\n  dataset_dir: sets\n  template: qwen3\nmodel:\n  model_name_or_path: m\n" + kSign);
  EXPECT_EQ(flag_in(raw, "--data-path"), "none");
  EXPECT_THAT(raw.notes,
              Contains(HasSubstr("shardloom preprocess --dataset-dir sets --input alpaca --output-prefix DATA")));
}

// The keys of the eight published files for dense Qwen3.
TEST(Llm, APublishedFileForDenseQwen3IsTakenUnchanged) {
  const std::string folder = qwen3_folder("model.safetensors").string();
  const Translation file =
      read("model:\n  model_id: qwen3\n  model_name_or_path: " + folder +
               "\n  trust_remote_code: false\n  train_from_scratch: false\n"
               "data:\n  dataset: {\"file_name\": \"alpaca.parquet\"}\n  template: qwen3\n  cutoff_len: 4096\n"
               "  packing: true\n"
               "  overwrite_cache: true\n  preprocessing_num_workers: 16\n"
               "parallel:\n  fsdp_size: 8\n  tp_size: 1\n  ep_size: 1\n  cp_size: 1\n  fsdp_modules:\n"
               "    - model.layers.{*}\n    - model.embed_tokens\n    - lm_head\n"
               "  num_to_forward_prefetch: 1\n  num_to_backward_prefetch: 1\n  recompute: true\n"
               "  recompute_modules:\n    - model.layers.{*}\n"
               "training:\n  output_dir: ./out\n  per_device_train_batch_size: 1\n  gradient_accumulation_steps: 2\n"
               "  max_steps: 2000\n  lr: 1.25e-6\n"
               "  weight_decay: 1e-1\n  stage: sft\n  optimizer: adamw\n  logging_steps: 1\n"
               "  lr_scheduler_type: cosine\n  warmup_ratio: 0.01\n"
               "optimization:\n  use_fused_rmsnorm: true\n  use_fused_rotary_pos_emb: true\n  use_flash_attn: true\n",
           {.overrides = {"--training.max_steps", "5"}});
  EXPECT_THAT(file.refused, IsEmpty());
  EXPECT_TRUE(file.model_is_built);
  EXPECT_EQ(key_in(file, "sharding_size"), "8");
  EXPECT_EQ(flag_in(file, "--init-from-hf-path"), folder);
  EXPECT_EQ(flag_in(file, "--train-iters"), "5");
  EXPECT_EQ(flag_in(file, "--global-batch-size"), "16");
  EXPECT_EQ(key_in(file, "recompute_modules"), "[\"model.layers.{*}\"]");
}

TEST(Llm, ExpertsAreShared) {
  const std::string text = "parallel:\n  fsdp_size: 8\n  ep_size: 4\n";
  const Translation copies = read(text + kSign, {.world = 8});
  EXPECT_EQ(key_in(copies, "expert_parallel_size"), "4");
  EXPECT_EQ(key_in(copies, "moe_modules"), "[\"model.layers.{*}.mlp.experts\"]");
  EXPECT_EQ(key_in(copies, "reshard_local_experts"), "false");  // its ep_fsdp_size is 1 unless given
  EXPECT_EQ(key_in(read(text + "  ep_fsdp_size: 2\n" + kSign, {.world = 8}), "reshard_local_experts"), "none");
}

}  // namespace
}  // namespace loom::dialects
