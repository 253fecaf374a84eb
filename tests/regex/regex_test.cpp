// Promise: a pattern matches as the libraries match that the files are made for; one that costs too much is refused
//          soon, with its place and text.
// World:   patterns and texts made by hand.
#include "engine/regex/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::regex {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// All matches of a text, one behind the other.
std::vector<std::string> matches(std::string_view pattern, const std::string& text) {
  const Regex regex(pattern, "t.json: key");
  RegexScratch scratch;
  std::vector<std::string> found;
  std::size_t from = 0;
  while (const auto match = regex.search(text, from, scratch)) {
    found.push_back(text.substr(match->begin, match->end - match->begin));
    from = std::max(match->end, match->begin + 1);
    if (from > text.size()) break;
  }
  return found;
}

std::string refusal(std::string_view pattern, const std::string& text) {
  return test::message_of<ConfigError>([&] { matches(pattern, text); });
}

bool is_full(std::string_view pattern, std::string_view text, Part part = Part::kAll) {
  RegexScratch scratch;
  return FullMatch(pattern, "t.json: key", part).matches(text, scratch);
}

std::string full_refusal(std::string_view pattern, std::string_view text) {
  return test::message_of<ConfigError>([&] { is_full(pattern, text); });
}

TEST(Regex, FindsWhatOnigurumaFinds) {
  EXPECT_THAT(matches(R"(\p{L}+|\p{N})", "ab 12 \u00e9"), ElementsAre("ab", "1", "2", "\u00e9"));
  EXPECT_THAT(matches("(?i:A)b*", "xaBAbb"), ElementsAre("a", "Abb"));
  EXPECT_THAT(matches("$", "ab"), ElementsAre(""));
}

TEST(Regex, FindsFarAwayWhatItFindsNearby) {
  std::string text(3'000'000, 'x');
  for (const std::size_t at : {std::size_t{5}, std::size_t{1'000'000}, text.size() - 3}) {
    text.replace(at, 3, "\u20ac");
    EXPECT_THAT(matches("\u20ac", text), ElementsAre("\u20ac")) << at;
    EXPECT_THAT(matches("(?<=x)\u20ac|q+$", text), ElementsAre("\u20ac")) << at;
    text.replace(at, 3, "xxx");
  }
  const std::string spaces(50'000, ' ');
  EXPECT_TRUE(matches(R"(\s*z)", spaces + "z").front() == spaces + "z");
  EXPECT_EQ(matches(R"(\s*[\r\n]+|\s+(?!\S)|\s+)", spaces + "x").front().size(), spaces.size() - 1);
}

TEST(Regex, ThatReadsTheSameAgainAndAgainIsRefused) {
  const std::string text = std::string(99'999, 'a') + "cb";
  const auto said = [](const std::string& pattern) {
    return AllOf(
        StartsWith("t.json: key is '" + pattern + "', which takes too much work on a text of 100001 bytes, at byte "),
        HasSubstr("simplify the pattern"));
  };
  EXPECT_THAT(refusal("(?>a+)b", text), said("(?>a+)b"));
  EXPECT_THAT(refusal("(?>a+)b|.", text), said("(?>a+)b|."));
  EXPECT_THAT(refusal("(?:a(?>a*)b|a)*c", text), said("(?:a(?>a*)b|a)*c"));
  EXPECT_THAT(refusal("(?:a?){99999}a{99999}", text), said("(?:a?){99999}a{99999}"));  // each retry reads more
}

TEST(Regex, ThatIsNoneIsRefused) {
  EXPECT_EQ(
      refusal("+a", ""),
      "t.json: key is '+a', which is no regular expression: target of repeat operator is not specified; correct it");
  EXPECT_EQ(refusal("(a", ""),
            "t.json: key is '(a', which is no regular expression: end pattern with unmatched parenthesis; correct it");
  EXPECT_EQ(refusal(std::string(100'000, '('), ""), "t.json: key has 100000 bytes; a pattern may have 8192");
  EXPECT_THAT(refusal(std::string(4000, '(') + std::string(4000, ')'), ""), HasSubstr("parse depth limit over"));
  EXPECT_THAT(refusal("a\xff", ""), HasSubstr("is 'a\\xff', which is no UTF-8 at byte 1"));
}

TEST(FullMatch, IsOfTheWholeTextAsPythonHasIt) {
  EXPECT_TRUE(is_full(R"(.*\.(q|v)_proj)", "model.layers.0.q_proj"));
  EXPECT_FALSE(is_full(R"(.*\.(q|v)_proj)", "model.layers.0.q_proj.x"));
  EXPECT_TRUE(is_full("a|ab", "ab"));
  EXPECT_FALSE(is_full("a|b", "ab"));
  EXPECT_TRUE(is_full(R"(^(?!.*visual).*(?:q_proj|v_proj)$)", "model.q_proj"));
  EXPECT_FALSE(is_full(R"(^(?!.*visual).*(?:q_proj|v_proj)$)", "visual.q_proj"));
  EXPECT_TRUE(is_full("(?P<n>x)(?P=n)", "xx"));
  EXPECT_TRUE(is_full("(?i)Q_PROJ", "q_proj"));
  EXPECT_TRUE(is_full("q|v", "m.v", Part::kLastNames));
  EXPECT_FALSE(is_full("^v", "m.v", Part::kLastNames));
  EXPECT_TRUE(is_full("m|q", "q.v", Part::kBeginning));
  EXPECT_FALSE(is_full("v", "q.v", Part::kBeginning));
  EXPECT_FALSE(is_full(".*", "a\xff"));
}

TEST(FullMatch, ThatTakesTooMuchIsRefused) {
  EXPECT_EQ(full_refusal("([a-z_.0-9]+)+!", "model.layers.0.self_attn.q_proj"),
            "t.json: key is '([a-z_.0-9]+)+!', which takes too much work on 'model.layers.0.self_attn.q_proj': "
            "retry-limit-in-match over; simplify the pattern");
  EXPECT_EQ(full_refusal("a)|(b", "a"),
            "t.json: key is 'a)|(b', which is no regular expression: unmatched close parenthesis; correct it");
  EXPECT_EQ(full_refusal(std::string(100'000, '('), "a"), "t.json: key has 100000 bytes; a pattern may have 8192");
}

// Each of them takes 65 thousand retries, which one text may.
TEST(FullMatch, OfManyTextsIsRefusedWhereAllTogetherTakeTooMuch) {
  const FullMatch pattern("([a-z]+)+!", "t.json: key");
  RegexScratch scratch;
  const auto match_all = [&] {
    for (int i = 0; i < 100'000; ++i) pattern.matches("abcdefghijklmnop", scratch);
  };
  EXPECT_EQ(test::message_of<ConfigError>(match_all),
            "t.json: key is '([a-z]+)+!', which takes too much work on 'abcdefghijklmnop': too many texts are matched "
            "so; simplify the pattern");
}

}  // namespace
}  // namespace loom::regex
