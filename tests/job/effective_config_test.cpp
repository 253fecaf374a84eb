// Promise: the effective configuration has every key of training once, and a reader of YAML gets the values of the
//          job from it.
// World:   the table.
#include "engine/job/effective_config.h"

#include <gmock/gmock.h>

#include "engine/config/document.h"
#include "engine/job/key.h"
#include "engine/train/saved_arguments.h"
#include "sharding/config/fsdp2_config.h"

namespace loom::job {
namespace {

using ::testing::HasSubstr;

config::Value read(const Job& job) { return config::parse_yaml(effective_config(job), kEffectiveConfigName); }

// The words of a value as they would be written behind its flag.
Texts words_in(const config::Value& value) {
  Texts words;
  for (const config::Value& item : value.items()) words.push_back(item.scalar());
  if (value.is_scalar()) words.push_back(value.scalar());
  return words;
}

TEST(EffectiveConfig, HasEveryKeyOfTraining) {
  const config::Value file = read(Job{});
  for (const Key& key : keys()) {
    const config::Value* value = file.find(train::name_in_files(key.name()));
    ASSERT_EQ(value != nullptr, key.in_train) << key.name();
    if (value == nullptr || value->is_null()) continue;
    if (key.kind == Kind::kToggle) {
      EXPECT_EQ(Value(value->boolean().value()), key.get(Job{})) << key.name();
    } else if (key.kind == Kind::kReal) {
      EXPECT_EQ(Value(value->number().value()), key.get(Job{})) << key.name();
    } else {
      EXPECT_EQ(words_in(*value), words_of(key, key.get(Job{}))) << key.name();
    }
  }
}

TEST(EffectiveConfig, KeepsEveryDigitAndEveryCharacter) {
  Job job;
  job.schedule.lr = 0.1 + 0.2;
  job.optimizer.adam_eps = 1e-5;
  job.schedule.iterations_to_skip = {3, 5};
  job.sample.prompt = "a: \"b\"\n#c\t\xc3\xa9";
  job.model.freeze = {"a, b", "[c]"};
  const config::Value file = read(job);
  EXPECT_EQ(file.find("lr")->number(), job.schedule.lr);
  EXPECT_EQ(file.find("adam_eps")->scalar(), "1.0e-05");  // "1e-05" is a text in YAML 1.1
  EXPECT_EQ(words_in(*file.find("iterations_to_skip")), (Texts{"3", "5"}));
  EXPECT_EQ(file.find("prompt")->scalar(), job.sample.prompt);
  EXPECT_EQ(words_in(*file.find("freeze")), (Texts{"a, b", "[c]"}));
}

TEST(EffectiveConfig, HasTheShardingThatAnotherDialectSays) {
  Job job;
  job.parallel.use_torch_fsdp2 = true;
  job.parallel.fsdp2_config_path = "mm.yaml";
  job.parallel.fsdp2_config = std::make_shared<const sharding::Fsdp2Config>(
      sharding::parse_fsdp2_config("sharding_size: 2\nrecompute_every: 3\n", "a.yaml"));
  const config::Value file = read(job);
  EXPECT_EQ(file.find("fsdp2_config_path"), nullptr);
  EXPECT_EQ(file.find("sharding_size")->scalar(), "2");
  EXPECT_EQ(file.find("recompute_every")->scalar(), "3");
  job.parallel.recompute_every = 5;  // the flag replaces the key
  EXPECT_EQ(read(job).find("recompute_every")->scalar(), "5");
}

TEST(EffectiveConfig, OfAUsersProgramHasItsFlags) {
  Job job;
  job.written.added_flags = {{"--image-size", "32"}, {"--prompt", "a"}};
  EXPECT_THAT(effective_config(job), HasSubstr("\n# Flags of this program\nimage_size: \"32\"\nprompt: \"a\"\n"));
  EXPECT_EQ(read(job).find("prompt")->scalar(), "a");
}

}  // namespace
}  // namespace loom::job
