// Promise: DeepSpeed's keys are the FSDP2 job that comes nearest, which is said; accelerate's block is the same as
//          the JSON.
// World:   8 ranks, Qwen3 with two layers.
#include "tests/dialects/models.h"
#include "tests/dialects/translated.h"

namespace loom::dialects {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Asked json(std::map<std::string, std::string> flags = {}) {
  flags["--model-config"] = (qwen3_folder() / "config.json").string();
  return {.flags = std::move(flags), .file = "f.json"};
}

Translation zero(const std::string& keys) { return read("{\"zero_optimization\": {" + keys + "}}", json()); }

TEST(DeepSpeed, StagesAreTheirNearest) {
  const auto stage = [](int number) {
    const Translation file = zero(fmt::format("\"stage\": {}", number));
    EXPECT_THAT(file.notes, Contains(HasSubstr("read as the FSDP2 file that comes nearest")));
    return fmt::format("{} {} {} {}", key_in(file, "sharding_size"), key_in(file, "reshard_after_forward"),
                       key_in(file, "reshard_after_backward"), key_in(file, "sync_each_batch"));
  };
  EXPECT_EQ(stage(0), "1 false none none");
  EXPECT_EQ(stage(1), "auto false false false") << "reduces gradients in the last micro-batch";
  EXPECT_EQ(stage(2), "auto false false none");
  EXPECT_EQ(stage(3), "auto true none none");
  EXPECT_EQ(key_in(zero("\"stage\": 3"), "sub_modules_to_wrap"), "[Qwen3DecoderLayer, model.embed_tokens]");
}

TEST(DeepSpeed, OffloadAndGroups) {
  const Translation file =
      zero(R"("stage": 3, "offload_param": {"device": "cpu", "pin_memory": true}, "zero_hpz_partition_size": 4)");
  EXPECT_EQ(key_in(file, "offload_to_cpu"), "true");
  EXPECT_EQ(key_in(file, "pin_memory"), "true");
  EXPECT_EQ(key_in(file, "reshard_after_forward"), "4");
  EXPECT_EQ(flag_in(zero(R"("stage": 2, "offload_optimizer": {"device": "cpu"})"), "--optimizer"), "adamw_swap");
  EXPECT_EQ(key_in(zero(R"("stage": 3, "mics_shard_size": 4)"), "sharding_size"), "4");
  EXPECT_THAT(refusal(R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}})", json()),
              HasSubstr("disks are not used"));
}

TEST(DeepSpeed, AutoIsWhatTheFlagsSay) {
  const std::string text =
      R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"},
          "zero_optimization": {"stage": 0}})";
  EXPECT_THAT(read(text, json()).missing,
              Contains(HasSubstr("train_micro_batch_size_per_gpu: it is auto; give --micro-batch-size")));
  const Translation file = read(text, json({{"--micro-batch-size", "2"}, {"--bf16", ""}}));
  EXPECT_THAT(file.missing, IsEmpty());
  EXPECT_EQ(key_in(file, "param_dtype"), "bf16");
}

// The file of transformers' own documentation, for ZeRO 3.
TEST(DeepSpeed, AFileOfAutoAloneIsRead) {
  const std::string text = R"({
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2,
             "min_loss_scale": 1},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                                                 "warmup_num_steps": "auto"}},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true},
                          "offload_param": {"device": "cpu", "pin_memory": true}, "overlap_comm": true,
                          "sub_group_size": 1e9, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
                          "stage3_param_persistence_threshold": "auto"},
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto"})";
  const Translation file = read(text, json());
  EXPECT_THAT(file.refused, IsEmpty());
  EXPECT_EQ(flag_in(file, "--lr-decay-style"), "constant");
  EXPECT_EQ(flag_in(file, "--lr-warmup-init"), "none") << "transformers fills in 0";
  EXPECT_THAT(file.missing,
              Contains(HasSubstr("scheduler.params.warmup_num_steps: it is auto; give --lr-warmup-iters")));
}

TEST(DeepSpeed, Bf16WithoutACopyInFp32IsTheStoredDtype) {
  const auto text = [](const std::string& more) {
    return R"({"train_batch_size": 8, "zero_optimization": {"stage": 3}, "bf16": {"enabled": true)" + more + "}}";
  };
  const std::string masters = R"(, "bf16_master_weights_and_grads": true)",
                    states = R"(, "bf16_optimizer_states": true)";
  EXPECT_EQ(flag_in(read(text(masters + states), json()), "--params-dtype"), "bf16");
  EXPECT_EQ(flag_in(read(text(""), json()), "--params-dtype"), "none");
  EXPECT_THAT(
      refusal(text(masters), json()),
      HasSubstr("bf16.bf16_master_weights_and_grads is true; moments have the type of their parameter here; add "
                "bf16_optimizer_states: true"));
  EXPECT_THAT(refusal(text(states), json()),
              HasSubstr("bf16.bf16_optimizer_states is true; moments have the type of their parameter here; add "
                        "bf16_master_weights_and_grads: true"));
}

TEST(DeepSpeed, TheProductOfTheBatchHasToFit) {
  EXPECT_EQ(
      flag_in(read(R"({"train_batch_size": 32, "gradient_accumulation_steps": 2})", json()), "--micro-batch-size"),
      "2");
  EXPECT_THAT(
      refusal(R"({"train_batch_size": 32, "gradient_accumulation_steps": 2, "train_micro_batch_size_per_gpu": 1})",
              json()),
      HasSubstr("micro-batch 1 x 2 steps x 8 ranks is 16; make them equal"));
}

TEST(DeepSpeed, MatricesAreShared) {
  const auto text = [](int stage, const std::string& tensor) {
    return fmt::format(R"({{"zero_optimization": {{"stage": {}}}, "tensor_parallel": {{{}}}, "train_batch_size": 16,
                            "gradient_accumulation_steps": 2}})",
                       stage, tensor);
  };
  const Translation file =
      read(text(2, R"("autotp_size": 4, "tp_overlap_comm": true, "preset_model": "qwen2")"), json());
  EXPECT_THAT(file.refused, IsEmpty());
  EXPECT_EQ(key_in(file, "tensor_parallel_size"), "4");
  EXPECT_EQ(key_in(file, "sharding_size"), "auto");  // the two others
  EXPECT_EQ(flag_in(file, "--micro-batch-size"), "4");
  EXPECT_THAT(file.without_effect, Contains("tensor_parallel.preset_model"));
  EXPECT_EQ(key_in(read(text(0, R"("autotp_size": 2)"), json()), "sharding_size"), "1");
  EXPECT_EQ(key_in(read(text(2, R"("autotp_size": 0)"), json()), "tensor_parallel_size"), "none");
  EXPECT_THAT(refusal(text(3, R"("autotp_size": 2)"), json()),
              HasSubstr("its tool shares matrices beside zero_optimization.stage 0 to 2; write one of these, or 1"));
  EXPECT_THAT(refusal(text(2, R"("autotp_size": 3)"), json()),
              HasSubstr("tensor_parallel.autotp_size is 3; it does not divide the 8 ranks; use a divisor of 8"));
  EXPECT_THAT(refusal(text(2, R"("autotp_size": 2, "partition_config": {"use_default_specs": false})"), json()),
              HasSubstr("tensor_parallel.partition_config"));
  EXPECT_THAT(refusal(text(2, R"("tp": {"tp_size": 2})"), json()),
              HasSubstr("is not read in training; write tensor_parallel.autotp_size"));
}

TEST(DeepSpeed, AcceleratesBlockIsTheJson) {
  const Translation block = read(
      "distributed_type: DEEPSPEED\n"
      "deepspeed_config: {zero_stage: 3, offload_param_device: cpu, gradient_clipping: 0.5}\n",
      json());
  const Translation file = read(
      R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}, "gradient_clipping": 0.5})", json());
  EXPECT_THAT(block.refused, IsEmpty());
  EXPECT_THAT(differences(resolve(block, context_of(json())), resolve(file, context_of(json()))), IsEmpty());
}

}  // namespace
}  // namespace loom::dialects
