// Promise: from adapters on two ranks through peft's folder to a merged model that trains on; plan knows what is
//          frozen; what does not fit ends with status 2 and one line, and nothing half written.
// World:   the built program; the tiny model of the folder, and the tiny reference models.
#include <gmock/gmock.h>

#include "tests/support/checkpoints.h"
#include "tests/support/program.h"

namespace loom::test {
namespace {

using ::testing::HasSubstr;

const Words kLora{"--lora-target-modules", "linear_qkv", "down_proj", "--lora-r", "4", "--lora-alpha", "8"};

// A folder of the model that the runs begin with.
Words from_base(const ProgramFolder& folder) {
  const Outcome made = folder.run(with_value(kFourSteps, "--train-iters", "1") + Words{"--save", "base"});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  return {"train",
          "--init-from-hf-path",
          "base",
          "--data-path",
          "data",
          "--seq-length",
          "16",
          "--train-iters",
          "3",
          "--lr",
          "0.01",
          "--nproc-per-node",
          "2",
          "--use-torch-fsdp2",
          "--fsdp2-config-path",
          "fsdp2.yaml"};
}

TEST(LoraProgram, TrainsSavesMergesAndTrainsOn) {
  const ProgramFolder folder;
  const Words base = from_base(folder);
  const std::string weights = folder.read("base/model.safetensors");
  const Outcome tuned = folder.run(base + kLora + Words{"--save", "tuned"});
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  EXPECT_THAT(tuned.out, HasSubstr("linear_qkv of --lora-target-modules means q_proj, k_proj, v_proj here\n"));
  EXPECT_THAT(tuned.out, HasSubstr("LoRA of rank 4, scale 2 (alpha 8) on 8 modules: "));
  EXPECT_THAT(tuned.out, HasSubstr("frozen, --save writes the adapters alone\n"));
  EXPECT_TRUE(std::filesystem::exists(folder.path("tuned/adapter_config.json")));
  EXPECT_FALSE(std::filesystem::exists(folder.path("tuned/model.safetensors")));
  EXPECT_EQ(folder.read("base/model.safetensors"), weights);
  const Outcome merged = folder.run({"merge", "--base", "base", "--adapter", "tuned", "--save", "merged"});
  ASSERT_EQ(merged.exit_code, 0) << merged.err;
  EXPECT_THAT(merged.out, HasSubstr("wrote merged: "));
  EXPECT_THAT(merged.out, HasSubstr("; 8 with an adapter added\n"));
  EXPECT_EQ(folder.read("merged/config.json"), folder.read("base/config.json"));
  // Going on from the adapters and from the merged model begins with the same loss.
  const Outcome on = folder.run(base + Words{"--lora-load", "tuned", "--metrics-path", "on.jsonl"});
  ASSERT_EQ(on.exit_code, 0) << on.err;
  const Outcome whole =
      folder.run(with_value(base, "--init-from-hf-path", "merged") + Words{"--metrics-path", "whole.jsonl"});
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_NEAR(folder.metrics("on.jsonl").front().at("loss").get<double>(),
              folder.metrics("whole.jsonl").front().at("loss").get<double>(), 1e-5);
}

TEST(LoraProgram, AdaptersOfACheckpointLeaveAsPeftsFolder) {
  const ProgramFolder folder;
  const Words base = from_base(folder);
  const Words tuned = base + kLora + Words{"--lora-modules-to-save", "lm_head"};
  ASSERT_EQ(folder.run(tuned + Words{"--save", "tuned"}).exit_code, 0);
  ASSERT_EQ(folder.run(tuned + Words{"--save", "run", "--save-interval", "3"}).exit_code, 0);
  const Words convert{"convert", "dcp-to-hf", "--load-dir", "run", "--model-assets-dir", "base", "--save-dir"};
  const Outcome made = folder.run(convert + Words{"peft"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("wrote peft: 17 tensors"));
  for (const char* file : {"adapter_config.json", "adapter_model.safetensors"}) {
    EXPECT_EQ(folder.read(fmt::format("peft/{}", file)), folder.read(fmt::format("tuned/{}", file))) << file;
  }
  EXPECT_FALSE(std::filesystem::exists(folder.path("peft/config.json")));
  ASSERT_EQ(folder.run({"merge", "--base", "base", "--adapter", "peft", "--save", "merged"}).exit_code, 0);
  const Outcome half = folder.run(convert + Words{"half", "--dtype", "bf16"});
  ASSERT_EQ(half.exit_code, 0) << half.err;
  EXPECT_LT(std::filesystem::file_size(folder.path("half/adapter_model.safetensors")),
            std::filesystem::file_size(folder.path("peft/adapter_model.safetensors")));
  const Outcome cut = folder.run(convert + Words{"cut", "--shard-size", "1KB"});
  EXPECT_EQ(cut.exit_code, 2);
  EXPECT_THAT(cut.err,
              HasSubstr("--shard-size is for whole models, and run/iter_0000003 holds LoRA adapters, which are "
                        "written as one file with peft's names; remove it\n"));
  const std::string gpt2 = LOOM_SOURCE_DIR "/tests/reference/logits/gpt2";
  const Outcome other = folder.run(with_value(convert, "--model-assets-dir", gpt2) + Words{"other"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("run/iter_0000003: its adapters have 'model.layers."));
  EXPECT_THAT(other.err, HasSubstr("give the folder of the base they were trained beside\n"));
  for (const char* none : {"cut", "other"}) EXPECT_FALSE(std::filesystem::exists(folder.path(none))) << none;
}

TEST(LoraProgram, MergeRefusesWhatDoesNotFit) {
  const ProgramFolder folder;
  const Words base = from_base(folder);
  ASSERT_EQ(folder.run(base + kLora + Words{"--save", "tuned"}).exit_code, 0);
  const std::string reference = LOOM_SOURCE_DIR "/tests/reference/logits/";
  const Outcome other = folder.run({"merge", "--base", reference + "qwen2", "--adapter", "tuned", "--save", "merged"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("give the base it was trained on\n"));
  const Outcome gpt2 = folder.run({"merge", "--base", reference + "gpt2", "--adapter", "tuned", "--save", "merged"});
  EXPECT_EQ(gpt2.exit_code, 2);
  EXPECT_THAT(gpt2.err, HasSubstr("fan_in_fan_out is false, and the model_type of"));
  EXPECT_FALSE(std::filesystem::exists(folder.path("merged")));
  const Outcome taken = folder.run({"merge", "--base", "base", "--adapter", "tuned", "--save", "base"});
  EXPECT_EQ(taken.exit_code, 2);
  folder.write("tuned/adapter_config.json", "{\"peft_type\": \"LORA\"");
  const Outcome broken = folder.run({"merge", "--base", "base", "--adapter", "tuned", "--save", "merged"});
  EXPECT_EQ(broken.exit_code, 2);
  EXPECT_THAT(broken.err, HasSubstr("tuned/adapter_config.json"));
  EXPECT_FALSE(std::filesystem::exists(folder.path("merged")));
}

TEST(LoraProgram, APlanKnowsWhatIsFrozen) {
  const ProgramFolder folder;
  const auto planned = [&](const Words& more) { return plan_of_four(folder, more); };
  const auto whole = planned({}), lora = planned(kLora), frozen = planned({"--freeze", "model.layers.{*}"});
  EXPECT_EQ(whole.at("trained_parameters"), whole.at("parameters"));
  EXPECT_LT(lora.at("trained_parameters").get<int>(), whole.at("trained_parameters").get<int>() / 2);
  EXPECT_GT(lora.at("parameters").get<int>(), whole.at("parameters").get<int>());
  EXPECT_LT(frozen.at("trained_parameters").get<int>(), whole.at("trained_parameters").get<int>());
  const Outcome wrong = folder.run(kPlanOfFour + Words{"--freeze", "model.layer.{*}"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("--freeze"));
}

TEST(LoraProgram, RecomputeOfFrozenLayersKeepsTheAdaptersGradients) {
  const ProgramFolder folder;
  const Words base = from_base(folder);
  ASSERT_EQ(folder.run(base + kLora + Words{"--metrics-path", "kept.jsonl"}).exit_code, 0);
  folder.write("recompute.yaml",
               "sharding_size: auto\nsub_modules_to_wrap: [\"model.layers.{*}\"]\nrecompute_modules: "
               "[\"model.layers.{*}\"]\nuse_reentrant: true\n");
  const Outcome again = folder.run(with_value(base, "--fsdp2-config-path", "recompute.yaml") + kLora +
                                   Words{"--metrics-path", "again.jsonl"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  const auto kept = folder.metrics("kept.jsonl"), recomputed = folder.metrics("again.jsonl");
  ASSERT_EQ(kept.size(), recomputed.size());
  for (std::size_t i = 0; i < kept.size(); ++i) {
    EXPECT_EQ(kept[i].at("loss"), recomputed[i].at("loss"));
    EXPECT_EQ(kept[i].at("grad_norm"), recomputed[i].at("grad_norm"));
  }
}

}  // namespace
}  // namespace loom::test
