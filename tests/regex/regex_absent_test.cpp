// Promise: a build without regular expressions matches plain names, and refuses each expression with its place and the
//          option that has them.
// World:   patterns made by hand. Compiled with LOOM_TEXT=OFF.
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/regex/regex.h"
#include "tests/support/files.h"

namespace loom::regex {
namespace {

TEST(Regex, IsRefusedWithItsOption) {
  const std::string message =
      "t.json: key is 'a+', a regular expression, and this program, which was built with LOOM_TEXT=OFF, reads none; "
      "build it with cmake -DLOOM_TEXT=ON";
  EXPECT_EQ(test::message_of<ConfigError>([] { Regex("a+", "t.json: key"); }), message);
  EXPECT_EQ(test::message_of<ConfigError>([] { FullMatch("a+", "t.json: key"); }), message);
}

TEST(FullMatch, APlainNameMatches) {
  RegexScratch scratch;
  const FullMatch whole("layers.1", "t.json: key");
  EXPECT_TRUE(whole.matches("layers.1", scratch));
  EXPECT_TRUE(whole.matches("layers_1", scratch));
  for (const char* text : {"layers.12", "layers.", "model.layers.1", ""}) EXPECT_FALSE(whole.matches(text, scratch));
  EXPECT_FALSE(FullMatch(R"(layers\.1)", "t.json: key").matches("layers_1", scratch));
}

TEST(FullMatch, APlainNameMatchesABeginning) {
  RegexScratch scratch;
  const FullMatch beginning("model.embed", "t.json: key", Part::kBeginning);
  for (const char* text : {"model.embed", "model.embed_tokens.weight"}) EXPECT_TRUE(beginning.matches(text, scratch));
  for (const char* text : {"model.emb", "x.model.embed"}) EXPECT_FALSE(beginning.matches(text, scratch));
}

TEST(FullMatch, APlainNameMatchesTheEndOfAPath) {
  RegexScratch scratch;
  const FullMatch end("q_proj", "t.json: key", Part::kLastNames);
  for (const char* text : {"q_proj", "model.layers.0.q_proj"}) EXPECT_TRUE(end.matches(text, scratch));
  for (const char* text : {"xq_proj", "q_proj.base", "model.q_projx"}) EXPECT_FALSE(end.matches(text, scratch));
}

}  // namespace
}  // namespace loom::regex
