// Promise: rules name keys of the table, and their texts say the next step; a rule is applied to each written flag that
//          it names, and its text has the values of the job.
// World:   the table.
#include "engine/job/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace loom::job {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

bool is_key(std::string_view pattern) {
  if (!pattern.ends_with('*')) return find_key(pattern) != nullptr && find_key(pattern)->name() == pattern;
  const std::string_view prefix = pattern.substr(0, pattern.size() - 1);
  return std::ranges::any_of(keys(), [&](const Key& key) { return key.name().starts_with(prefix); });
}

// The names in braces.
std::vector<std::string> places_of(std::string_view text) {
  std::vector<std::string> places;
  for (std::size_t open = text.find('{'); open != std::string_view::npos; open = text.find('{', open + 1)) {
    places.emplace_back(text.substr(open + 1, text.find('}', open) - open - 1));
  }
  return places;
}

TEST(Rules, NameKeysOfTheTable) {
  for (const Rule& rule : rules()) {
    for (const std::string_view flag : rule.flags) EXPECT_TRUE(is_key(flag)) << flag;
    for (const std::string& place : places_of(rule.text)) {
      const bool is_of_flag = place == "flag" || place == "value";
      EXPECT_TRUE(is_of_flag ? !rule.flags.empty() : is_key(place)) << rule.text;
    }
  }
}

TEST(Rules, SayTheNextStep) {
  for (const Rule& rule : rules()) {
    if (!rule.text.empty()) {
      EXPECT_THAT(std::string(rule.text), HasSubstr("; "));
    }
    if (rule.text.empty()) {
      EXPECT_FALSE(rule.flags.empty());
    }
  }
}

TEST(Rules, AreAppliedToEachWrittenFlag) {
  Job job;
  job.model.model_config = "m";
  job.schedule.lr = 1e-3;
  job.schedule.min_lr = 2e-3;
  job.checkpoint.ckpt_step = 4;
  const RuleFindings findings =
      apply_rules(job, Program::kUsersTrain, {"--ckpt-step", "--muon-momentum", "--muon-nesterov", "--finetune"});
  EXPECT_THAT(findings.refused,
              ElementsAre("--min-lr is 0.002, above --lr 0.001; use at most --lr",
                          "--muon-momentum is of --optimizer muon, which is not given; add it, or remove the flag",
                          "--muon-nesterov is of --optimizer muon, which is not given; add it, or remove the flag",
                          "--ckpt-step is 4, but --load is not given, so nothing is loaded; add --load DIR"));
  EXPECT_THAT(findings.without_effect, ElementsAre("--finetune"));
}

TEST(Rules, RefuseWhatParametersInBf16CannotHave) {
  Job job;
  job.model.model_config = "m";
  job.model.params_dtype = DType::kBF16;
  job.model.downcast_to_bf16 = job.memory.reuse_fp32_param = job.optimizer.fp16 = true;
  job.model.init_from_hf_path = "folder";
  job.parallel.use_torch_fsdp2 = true;
  EXPECT_THAT(
      apply_rules(job, Program::kShardloomTrain, {"--downcast-to-bf16", "--reuse-fp32-param", "--fp16"}).refused,
      ElementsAre("--downcast-to-bf16 rounds weights that stay fp32, and --params-dtype is bf16; remove one of them",
                  "--reuse-fp32-param is for fp32 parameters, and --params-dtype is bf16; remove one of them",
                  "--fp16 scales the loss for gradients in fp16, and with --params-dtype bf16 they are stored in bf16; "
                  "use --bf16, or write --params-dtype fp32"));
  Job alone;
  alone.model.params_dtype = DType::kBF16;
  alone.parallel.bf16 = true;
  EXPECT_THAT(apply_rules(alone, Program::kShardloomTrain, {"--bf16"}).refused, IsEmpty());
}

TEST(Rules, OfOneCommandAreNotForAnother) {
  Job job;
  job.swap.smart_swap = true;
  EXPECT_THAT(apply_rules(job, Program::kUsersTrain, {"--smart-swap"}).refused,
              ElementsAre(HasSubstr("without --smart-swap-device-size")));
  EXPECT_THAT(apply_rules(job, Program::kUsersPlan, {"--smart-swap"}).refused, IsEmpty());
}

}  // namespace
}  // namespace loom::job
