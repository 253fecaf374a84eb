// Promise: the table of keys is well formed: every flag once, a value of each kind is read from words, kept in the job
//          and written back as the same words; what is out of range is refused with flag, value and what is allowed.
// World:   the table.
#include "engine/job/key.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>

#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::job {
namespace {

using test::message_of;

const Key& key_of(const std::string& flag) {
  const Key* key = find_key(flag);
  EXPECT_NE(key, nullptr) << flag;
  return *key;
}

std::string refusal(const std::string& flag, const std::string& word) {
  return message_of<ConfigError>([&] { read_value(key_of(flag), {word}); });
}

TEST(Keys, HaveEveryFlagOnce) {
  std::set<std::string> names;
  for (const Key& key : keys()) {
    std::string flags(key.flags);
    for (std::size_t begin = 0; begin <= flags.size();) {
      const std::size_t end = std::min(flags.find(',', begin), flags.size());
      const std::string flag = flags.substr(begin, end - begin);
      EXPECT_TRUE(flag.starts_with("--") || flag.starts_with("!--no-")) << flag;
      EXPECT_TRUE(names.insert(flag).second) << flag << " twice";
      begin = end + 1;
    }
    EXPECT_FALSE(key.about.empty()) << key.name();
    EXPECT_FALSE(key.about.ends_with('.')) << key.name();
    EXPECT_FALSE(key.heading.empty()) << key.name();
  }
}

TEST(Keys, DefaultsAreValuesThatTheirOwnReaderTakes) {
  for (const Key& key : keys()) {
    const Texts words = words_of(key, key.get(Job{}));
    if (words.empty() || !key.default_from.empty() || words == Texts{""}) continue;
    Job job;
    key.set(job, read_value(key, words));
    EXPECT_EQ(words_of(key, key.get(job)), words) << key.name();
  }
}

TEST(Keys, AreReadWithTheirRange) {
  Job job;
  key_of("--lr").set(job, read_value(key_of("--lr"), {"0.25"}));
  EXPECT_EQ(job.schedule.lr, 0.25);
  EXPECT_EQ(refusal("--lr", "0"), "--lr is 0; use a number above 0");
  EXPECT_EQ(refusal("--train-iters", "0"), "--train-iters is 0; use a whole number of at least 1");
  EXPECT_EQ(refusal("--train-iters", "2.5"), "--train-iters is 2.5; use a whole number of at least 1");
  EXPECT_EQ(refusal("--lr-decay-style", "cosin"),
            "--lr-decay-style is cosin; use constant, linear, cosine, inverse-square-root, WSD (did you mean cosine?)");
  EXPECT_EQ(refusal("--save", ""), "--save is empty; give it a value or leave it out");
}

TEST(Keys, OfAnIntegerOf32BitsStopThere) {
  EXPECT_EQ(refusal("--micro-batch-size", "2147483648"),
            "--micro-batch-size is 2147483648; use a whole number from 1 to 2147483647");
}

TEST(Keys, AreFoundByAnyOfTheirFlags) {
  EXPECT_EQ(key_of("--tokenizer-model").name(), "--tokenizer-name-or-path");
  EXPECT_EQ(find_key("--tokenizer"), nullptr);
}

TEST(Keys, HaveAllTheirNames) {
  EXPECT_THAT(key_of("--muon-nesterov").names(), testing::ElementsAre("--muon-nesterov", "--no-muon-nesterov"));
  for (const Key& key : keys()) EXPECT_EQ(key.names().front(), key.name());
}

}  // namespace
}  // namespace loom::job
