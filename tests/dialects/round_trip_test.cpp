// Promise: a job that is written in another dialect and read again is the same job, but for what is said to be lost;
//          what a dialect has a row for is not lost.
// World:   the table of the job's keys: each key with another value than its default, in turn; 4 ranks.
#include <algorithm>
#include <set>

#include "engine/dialects/row.h"
#include "engine/dialects/write.h"
#include "engine/job/effective_config.h"
#include "engine/job/key.h"
#include "sharding/config/fsdp2_keys.h"
#include "tests/dialects/models.h"
#include "tests/dialects/translated.h"

namespace loom::dialects {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

// Words that the key takes, other than its default's.
job::Texts other_words(const job::Key& key) {
  const job::Value usual = key.get(unwritten_job());
  std::vector<job::Texts> candidates = {{"7"}, {"0.25"}, {"1.5"}, {"other"}, {"8"}};
  if (key.kind == job::Kind::kChoice) candidates = {};
  if (key.kind == job::Kind::kTexts) candidates = {{"one", "two three"}};
  if (key.kind == job::Kind::kNumbers) candidates = {{"2", "3"}};
  if (key.words != nullptr) {
    for (const std::string& word : key.words()) candidates.push_back({word});
  }
  for (const job::Texts& words : candidates) {
    try {
      job::Job job = unwritten_job();
      key.set(job, job::read_value(key, words));
      if (key.get(job) != usual) return words;
    } catch (const ConfigError&) {
      continue;
    }
  }
  return {};
}

Resolved with(const job::Key& key) {
  Resolved resolved;
  resolved.world = 4;
  if (key.kind == job::Kind::kToggle) {
    const auto usual = key.get(unwritten_job());
    key.set(resolved.job, usual != job::Value(true));
  } else {
    const job::Texts words = other_words(key);
    if (!words.empty()) key.set(resolved.job, job::read_value(key, words));
  }
  return resolved;
}

std::string text_of(Dialect dialect, const Resolved& resolved, std::vector<std::string>& lost) {
  const Written written = write(resolved, dialect, context_of({.world = 4}));
  lost = written.lost;
  return written.text;
}

// A key of fsdp2_config.yaml goes by the name of the flag.
bool is_key_of_the_file(const job::Key& key) {
  std::string name(key.name().substr(2));
  std::ranges::replace(name, '-', '_');
  return sharding::find_fsdp2_key(name) != nullptr;
}

TEST(RoundTrip, OurOwnFileKeepsEveryKey) {
  int tried = 0;
  for (const job::Key& key : job::keys()) {
    if (key.name() == "--fsdp2-config-path" || is_key_of_the_file(key)) continue;
    std::vector<std::string> lost;
    const std::string text = text_of(Dialect::kFlat, with(key), lost);
    EXPECT_THAT(lost, IsEmpty()) << key.name() << "\n" << text;
    ++tried;
  }
  EXPECT_GT(tried, 170);
}

TEST(RoundTrip, TheEffectiveConfigurationOfARunIsItsJob) {
  for (const job::Key& key : job::keys()) {
    if (!key.in_train || key.name() == "--fsdp2-config-path") continue;
    const Resolved run = with(key);
    const Translation file = read(job::effective_config(run.job), {.world = 4});
    EXPECT_THAT(file.refused, IsEmpty()) << key.name();
    EXPECT_THAT(differences(run, resolve(file, context_of({.world = 4}))), IsEmpty()) << key.name();
  }
}

TEST(RoundTrip, GptArgsKeepFlagsAndLoseWhatIsOff) {
  for (const job::Key& key : job::keys()) {
    if (key.name() == "--fsdp2-config-path") continue;
    const bool is_off = key.kind == job::Kind::kToggle && key.get(with(key).job) != job::Value(true);
    std::vector<std::string> lost;
    text_of(Dialect::kGptArgs, with(key), lost);
    if (!is_off) {
      EXPECT_THAT(lost, IsEmpty()) << key.name();
    }
  }
}

// Flags that a dialect has a row for.
std::set<std::string> flags_of(const Table& table) {
  std::set<std::string> names;
  for (const Row& row : table.rows) {
    if (row.act == Act::kFlag) names.emplace(row.target);
  }
  return names;
}

TEST(RoundTrip, WhatADialectHasARowForIsNotLost) {
  for (const Dialect dialect : {Dialect::kNative, Dialect::kLlm}) {
    const std::set<std::string> known = flags_of(*table_of(dialect));
    for (const job::Key& key : job::keys()) {
      if (!known.contains(std::string(key.name())) || key.kind == job::Kind::kChoice) continue;
      std::vector<std::string> lost;
      const std::string text = text_of(dialect, with(key), lost);
      EXPECT_THAT(lost, Not(::testing::Contains(std::string(key.name())))) << word_of(dialect) << "\n" << text;
    }
  }
}

TEST(RoundTrip, AFileWrittenTwiceIsTheSame) {
  const std::string texts[] = {
      "training:\n  micro_batch_size: 2\n  gradient_accumulation_steps: 3\n  lr: 1e-4\n  lr_warmup_ratio: 0.1\n"
      "  train_iters: 20\n"
      "  lr_decay_ratio: 0.5\n  save: out\n  clip_grad: 0\n"
      "parallel:\n  fully_shard_parallel_size: 2\n"
      "  fsdp_plan: {apply_modules: [\"model.layers.{*}\", lm_head], param_dtype: bf16}\n"
      "features:\n  recompute: true\n  recompute_plan: {apply_modules: [\"model.layers.{*}\"]}\n",
      "parallel:\n  fsdp_size: 4\n  recompute: true\ntraining:\n  max_steps: 40\n  output_dir: out\n"
      "  gradient_accumulation_steps: 2\n"
      "  warmup_ratio: 0.1\noptimization:\n  use_flash_attn: true\n  chunk_loss_size: 64\n"};
  for (const std::string& text : texts) {
    const Context context = context_of({.world = 4});
    const Translation file = read(text, {.world = 4});
    ASSERT_THAT(file.refused, IsEmpty());
    const Resolved job = resolve(file, context);
    for (const Dialect dialect : {file.dialect, Dialect::kFlat}) {
      const Written written = write(job, dialect, context);
      EXPECT_THAT(written.lost, IsEmpty()) << word_of(dialect) << "\n" << written.text;
      const Resolved again = resolve(translate_text(written.text, "w.yaml", {}, context), context);
      EXPECT_EQ(write(again, dialect, context).text, written.text);
    }
  }
}

TEST(RoundTrip, WhatMindSpeedMMSaysByNameComesBack) {
  const std::string text =
      "training:\n  no_decay_modules: [Embedding]\n  lr_scaling_plan: [{match: lm_head, scale: 0.5}]\n"
      "features:\n  loss_cfg: {loss_type: per_sample_loss}\n"
      "parallel:\n  fsdp_plan: {apply_modules: [lm_head, \"model.layers.{*}.mlp\"], hook_modules: [\"model.layers.{*}\"],\n"
      "    num_to_forward_prefetch: 1}\n";
  const Context context = context_of({.world = 4});
  const Translation file = read(text, {.world = 4});
  ASSERT_THAT(file.refused, IsEmpty());
  const Resolved job = resolve(file, context);
  EXPECT_EQ(value_of(job, "--lr-scaling-plan"), "[\"lm_head=0.5\"]");
  EXPECT_THAT(write(job, Dialect::kNative, context).lost, IsEmpty());
}

// Of every dialect that has the axes: as much as it can say.
TEST(RoundTrip, AxesThatRanksShareComeBack) {
  const Asked asked{.world = 16, .flags = {{"--model-config", (qwen3_folder() / "config.json").string()}}};
  const Context context = context_of(asked);
  const std::string tensor = "sharding_size: auto\ntensor_parallel_size: 2\n",
                    eight = "sharding_size: 8\ntensor_parallel_size: 2\n",
                    four = "sharding_size: 4\ntensor_parallel_size: 2\n", gathered = "loss_parallel: false\n",
                    ring = "ring_attention_size: 2\nring_rotate_method: allgather\n",
                    plan =
                        "colwise_parallel: [\"model.layers.{*}.mlp.up_proj\"]\n"
                        "rowwise_parallel: [\"model.layers.{*}.mlp.down_proj\"]\n",
                    batch = "global_batch_size: 48\nmicro_batch_size: 2\n";
  const std::map<Dialect, std::vector<std::string>> texts = {
      {Dialect::kNative, {tensor + "sequence_parallel: true\n" + batch, tensor + plan + batch}},
      {Dialect::kLlm, {eight + plan + batch}},
      {Dialect::kAccelerate, {eight + gathered, eight + gathered + ring, four + gathered}},
      {Dialect::kTorchtitan,
       {tensor + "sequence_parallel: true\n", tensor + gathered + ring + "sequence_parallel: true\n", four + ring}},
      {Dialect::kDeepSpeed, {tensor + "reshard_after_forward: false\n"}},
  };
  for (const auto& [dialect, jobs] : texts) {
    for (const std::string& text : jobs) {
      const Resolved job = resolve(read(text, asked), context);
      const Written written = write(job, dialect, context);
      for (const char* key :
           {"tensor_parallel_size", "sequence_parallel", "loss_parallel", "colwise_parallel", "rowwise_parallel",
            "sharding_size", "ring_attention_size", "ring_rotate_method", "--global-batch-size"}) {
        EXPECT_THAT(written.lost, Not(::testing::Contains(key))) << word_of(dialect) << "\n"
                                                                 << text << "as\n"
                                                                 << written.text;
      }
    }
  }
}

TEST(RoundTrip, AKeyOfShardingGoesThroughTheSectionsThatHaveIt) {
  const char* lines[] = {"sharding_size: 2",           "param_dtype: bf16",
                         "reduce_dtype: fp32",         "output_dtype: fp16",
                         "cast_forward_inputs: false", "sub_modules_to_wrap: [\"model.layers.{*}\", lm_head]",
                         "ignored_modules: [lm_head]", "reshard_after_forward: false",
                         "num_to_forward_prefetch: 2", "num_to_backward_prefetch: 3",
                         "freeze: [lm_head]",          "pregather: true"};
  for (const char* line : lines) {
    const Context context = context_of({.world = 4});
    const Resolved job = resolve(read(fmt::format("{}\n", line), {.world = 4}), context);
    const Written native = write(job, Dialect::kNative, context);
    const std::string name = std::string(line).substr(0, std::string(line).find(':'));
    EXPECT_THAT(native.lost, Not(::testing::Contains(name))) << native.text;
  }
}

}  // namespace
}  // namespace loom::dialects
