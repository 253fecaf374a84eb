// Promise: text becomes the pieces, ids and texts that Hugging Face's library makes of it, and comes back whole.
// World:   tokenizers of 260 tokens, made by hand; pieces of the specification's table.
#include "engine/text/tokenizer/tokenizer.h"

#include <regex.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/text/tokenizer/splitter.h"
#include "engine/text/tokenizer/utf8.h"
#include "tests/support/files.h"
#include "tests/support/tokenizer_files.h"

namespace loom::data {
namespace {

using test::added_token;
using test::byte_level_json;
using test::llama_json;
using test::tokenizer_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

using Json = test::Json;
using Ids = std::vector<TokenId>;

Ids plain(const Tokenizer& tokenizer, std::string_view text) {
  return tokenizer.encode(text, {.add_special_tokens = false});
}

// The pieces of `text`, separated by |.
std::string cut(std::string_view text, std::string_view regex, bool by_hand, Behavior behavior = Behavior::kIsolated,
                bool invert = false) {
  const Splitter splitter(Pattern::regex(regex, "test"), by_hand ? WordPattern::of(regex) : std::nullopt, behavior,
                          invert);
  RegexScratch scratch;
  std::string pieces;
  splitter.each_piece(text, scratch, [&](Range range) {
    pieces.append(pieces.empty() ? "" : "|").append(text.substr(range.begin, range.end - range.begin));
  });
  return pieces;
}

struct Golden {
  std::string_view text, qwen, llama3, gpt2;
};

// By Hugging Face's library, tokenizers 0.23.3.
const Golden kGoldens[] = {
    {"I'm you'LL", "I|'m| you|'LL", "I|'m| you|'LL", "I|'m| you|'|LL"},
    {"x=12345;\n\n  y", "x|=|1|2|3|4|5|;\n\n| | y", "x|=|123|45|;\n\n| | y", "x|=|12345|;|\n\n | y"},
    {"a\u3000b \u180e c\u0085d", "a|\u3000b| \u180e| c|\u0085d", "a|\u3000b| \u180e| c|\u0085d",
     "a|\u3000|b| \u180e| c|\u0085|d"},
    {"tab\t\tx", "tab|\t|\tx", "tab|\t|\tx", "tab|\t|\t|x"},
    {"\r\n\r\nx", "\r\n\r\n|x", "\r\n\r\n|x", "\r\n\r|\n|x"},
    {"'\u017f don'T", "'\u017f| don|'T", "'\u017f| don|'T", "'|\u017f| don|'|T"},
    {"foo(bar)  \n", "foo|(bar|)|  \n", "foo|(bar|)|  \n", "foo|(|bar|)|  \n"},
    {"a_b__c", "a|_b|__|c", "a|_b|__|c", "a|_|b|__|c"}};

TEST(TokenizerPieces, AreThoseOfTheThreePatternsByOnigurumaAndByHand) {
  for (const bool by_hand : {false, true}) {
    for (const Golden& golden : kGoldens) {
      EXPECT_EQ(cut(golden.text, test::kQwenRegex, by_hand), golden.qwen) << by_hand;
      EXPECT_EQ(cut(golden.text, test::kLlama3Regex, by_hand), golden.llama3) << by_hand;
      EXPECT_EQ(cut(golden.text, test::kGpt2Regex, by_hand), golden.gpt2) << by_hand;
    }
  }
}

TEST(TokenizerPieces, ByHandAreThoseOfOnigurumaOnRandomText) {
  static constexpr std::u32string_view kOften =
      U"'sStTrReEvVmMlLdD \u017f\u212a12\u0663\u00bd\r\n\t\u0085\u00a0\u2028\u3000\u180e.,_()";
  for (const std::string_view regex : {test::kQwenRegex, test::kLlama3Regex, test::kGpt2Regex}) {
    ASSERT_TRUE(WordPattern::of(regex));
    std::mt19937 random(7);
    for (int round = 0; round < 1500; ++round) {
      std::string text;
      for (int i = 0; i < 24; ++i) {
        const std::uint32_t drawn = random();
        const char32_t any = drawn % 0x11000U + (drawn >> 28U == 0 ? 0x10000U : 0U);
        const bool often = drawn >> 31U != 0 || (any >= 0xd800 && any <= 0xdfff);
        append_character(text, often ? kOften[drawn % kOften.size()] : any);
      }
      ASSERT_EQ(cut(text, regex, true), cut(text, regex, false)) << escaped(text);
    }
  }
}

TEST(TokenizerPieces, OtherPatternsAreNotMatchedByHand) {
  EXPECT_FALSE(WordPattern::of(R"(\p{L}+)"));
  EXPECT_FALSE(WordPattern::of(std::string(test::kQwenRegex) + "|x"));
}

TEST(TokenizerPieces, FollowTheBehaviorOfASplit) {
  const auto by = [](Behavior behavior, bool invert = false) { return cut("a--b-c", "-", false, behavior, invert); };
  EXPECT_EQ(by(Behavior::kIsolated), "a|-|-|b|-|c");
  EXPECT_EQ(by(Behavior::kRemoved), "a|b|c");
  EXPECT_EQ(by(Behavior::kRemoved, true), "-|-|-");
  EXPECT_EQ(by(Behavior::kMergedWithPrevious), "a-|-|b-|c");
  EXPECT_EQ(by(Behavior::kMergedWithNext), "a|-|-b|-c");
  EXPECT_EQ(by(Behavior::kContiguous), "a|--|b|-|c");
}

TEST(TokenizerPieces, OfAPatternThatBacktracksWithoutEndAreRefused) {
  Json json = byte_level_json();
  json["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "(?:a|a|aa)+$"}}}, {"behavior", "Isolated"}, {"invert", false}};
  const auto tokenizer = tokenizer_of(json);
  EXPECT_EQ(test::message_of<ConfigError>([&] { tokenizer.encode(std::string(64, 'a') + "!"); }),
            "tokenizer.json: pre_tokenizer.pattern.Regex is '(?:a|a|aa)+$', which takes too much work on a text of 65 "
            "bytes, at byte 0 or after; simplify the pattern");
}

// Each piece is short, and each search within its retries.
TEST(TokenizerPieces, OfManyCostlySearchesAreRefused) {
  Json json = byte_level_json();
  json["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "(?:a|aa)+\\d| "}}}, {"behavior", "Isolated"}, {"invert", false}};
  const auto tokenizer = tokenizer_of(json);
  std::string text;
  for (int i = 0; i < 10'000; ++i) text += std::string(28, 'a') + " ";
  EXPECT_THAT(test::message_of<ConfigError>([&] { tokenizer.encode(text); }),
              StartsWith("tokenizer.json: pre_tokenizer.pattern.Regex is '(?:a|aa)+\\d| ', which takes too much work"));
}

// --- Normalizers

Json with_normalizers(Json normalizers) {
  Json json = byte_level_json();
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}};
  return json;
}

Json replace_step(const char* text, const std::string& content) {
  return {{"type", "Replace"}, {"pattern", {{"String", text}}}, {"content", content}};
}

// A run of them took a time that grew with its square.
TEST(TokenizerNormalizer, PutsAnyNumberOfMarksInOrder) {
  constexpr int kMarks = 300'000;
  std::string text = "a", above, below;
  for (int i = 0; i < kMarks; ++i) {
    text += i % 2 == 0 ? "\u0307" : "\u0323";
    (i % 2 == 0 ? above : below) += i % 2 == 0 ? "\u0307" : "\u0323";
  }
  // The dot below, of class 220, comes before the dot above, of class 230; the first of each joins the letter.
  const auto composed = tokenizer_of(with_normalizers(Json::array({{{"type", "NFC"}}})));
  const auto decomposed = tokenizer_of(with_normalizers(Json::array({{{"type", "NFD"}}})));
  EXPECT_EQ(composed.decode(composed.encode(text)) == "\u1ea1" + below.substr(2) + above, true);
  EXPECT_EQ(decomposed.decode(decomposed.encode(text)) == "a" + below + above, true);
}

TEST(TokenizerNormalizer, MakesNoTextWithoutEnd) {
  Json doubling = Json::array();
  for (int i = 0; i < 60; ++i) doubling.push_back(replace_step("a", "aa"));
  const auto doubled = tokenizer_of(with_normalizers(doubling));
  EXPECT_EQ(
      test::message_of<ConfigError>([&] { doubled.encode("aa"); }),
      "tokenizer.json: normalizer.normalizers[14]: the steps up to here make more than 65600 bytes of a text; shorten "
      "what they add, or take steps out");
  const auto tokenizer = tokenizer_of(with_normalizers(Json::array({replace_step("a", std::string(20'000, 'b'))})));
  EXPECT_EQ(tokenizer.encode("aaa").size(), 60'000u);
  EXPECT_THAT(test::message_of<ConfigError>([&] { tokenizer.encode(std::string(1'000, 'a')); }),
              HasSubstr("make more than 97536 bytes of a text"));

  Json decoding = byte_level_json();
  decoding["decoder"] = {{"type", "Sequence"}, {"decoders", doubling}};
  const auto decoder = tokenizer_of(decoding);
  EXPECT_THAT(test::message_of<ConfigError>([&] { decoder.decode(Ids{'a'}); }),
              StartsWith("tokenizer.json: decoder.decoders[16]: the steps up to here make more than"));
}

// Each step alone makes little of the text that it gets, and a pattern that matches nothing everywhere makes it longer.
TEST(TokenizerNormalizer, MakesNoMoreInManyStepsThanInOne) {
  const std::string text(100'000, 'a');
  const auto refused = [&](const Json& first, const Json& others) {
    Json steps(99, others);
    steps.insert(steps.begin(), first);
    const auto tokenizer = tokenizer_of(with_normalizers(steps));
    return test::message_of<ConfigError>([&] { tokenizer.encode(text); });
  };
  const Json prepend = {{"type", "Prepend"}, {"prepend", std::string(500'000, 'A')}};
  const Json matches_nothing = {{"type", "Replace"}, {"pattern", {{"Regex", "x*"}}}, {"content", "y"}};
  EXPECT_THAT(refused(prepend, {{"type", "Lowercase"}}), HasSubstr("normalizers[5]: the steps up to here make more"));
  EXPECT_THAT(refused(prepend, {{"type", "NFKD"}}), HasSubstr("normalizers[5]: the steps up to here make more"));
  // Which bound comes first depends on the machine's speed.
  EXPECT_THAT(refused(matches_nothing, matches_nothing),
              ::testing::AnyOf(HasSubstr("]: the steps up to here make more"), HasSubstr("takes too much work")));
}

TEST(TokenizerNormalizer, HasNoMoreThanAHundredSteps) {
  const Json lowercase = {{"type", "Lowercase"}};
  EXPECT_EQ(tokenizer_of(with_normalizers(Json(100, lowercase))).encode("A"), Ids{'a'});
  const auto refused = [&](const char* part, const char* list, const Json& step) {
    Json json = byte_level_json();
    json[part] = {{"type", "Sequence"}, {list, Json(101, step)}};
    return test::message_of<ConfigError>([&] { tokenizer_of(json); });
  };
  EXPECT_EQ(refused("normalizer", "normalizers", lowercase),
            "tokenizer.json: normalizer.normalizers[100]: more than 100 steps come together; take some out");
  EXPECT_EQ(refused("pre_tokenizer", "pretokenizers", {{"type", "Digits"}}),
            "tokenizer.json: pre_tokenizer.pretokenizers[100]: more than 100 steps come together; take some out");
  EXPECT_EQ(refused("decoder", "decoders", {{"type", "Fuse"}}),
            "tokenizer.json: decoder.decoders[100]: more than 100 steps come together; take some out");
}

TEST(Tokenizer, MergesByRankAndLeftmostFirst) {
  const auto tokenizer = tokenizer_of(byte_level_json());
  EXPECT_THAT(plain(tokenizer, "abc abc"), ElementsAre(258, ' ', 258));  // "a bc" has a lower rank than " a"
  EXPECT_THAT(plain(tokenizer, "ab ab"), ElementsAre('a', 'b', 256, 'b'));
  EXPECT_THAT(plain(tokenizer, "bcbcb"), ElementsAre(257, 257, 'b'));
  EXPECT_THAT(plain(tokenizer, ""), IsEmpty());
  EXPECT_EQ(tokenizer.size(), 260);
  EXPECT_EQ(tokenizer.find("\u0120abc"), 259);
  EXPECT_EQ(tokenizer.token(257), "bc");
  EXPECT_EQ(tokenizer.token(260), std::nullopt);
}

TEST(Tokenizer, GivesLongPiecesTheIdsOfShortOnes) {
  Json json = byte_level_json();
  json["pre_tokenizer"]["use_regex"] = false;
  const auto tokenizer = tokenizer_of(json);
  std::string text;
  Ids expected;
  for (int i = 0; i < 100; ++i) {
    text += "abcbx";
    expected.insert(expected.end(), {258, 'b', 'x'});
  }
  EXPECT_EQ(plain(tokenizer, text), expected);
  EXPECT_EQ(plain(tokenizer, text.substr(0, 45)), Ids(expected.begin(), expected.begin() + 27));
}

TEST(Tokenizer, GivesTextBackWhateverItsBytes) {
  const auto tokenizer = tokenizer_of(byte_level_json());
  std::string text;
  for (char32_t code = 0; code < 0x20000; code += code < 0x900 ? 1 : 61) {
    if (code < 0xd800 || code > 0xdfff) append_character(text, code);
  }
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
}

TEST(Tokenizer, NormalizesToNfcAndNothingElse) {
  Json json = byte_level_json();
  json["normalizer"] = {{"type", "NFC"}};
  const auto tokenizer = tokenizer_of(json);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("e\u0301 \u212b \uff21 \u1100\u1161 x")),
            "\u00e9 \u00c5 \uff21 \uac00 x");
}

// Hugging Face's tables are of Unicode 9: U+09FE came later, so that U+0323 does not move before it.
TEST(Tokenizer, OrdersMarksAsTheTablesOfTheReferenceDo) {
  Json json = byte_level_json();
  json["normalizer"] = {{"type", "NFC"}};
  const auto tokenizer = tokenizer_of(json);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("b\u0301\u0323")), "\u1e05\u0301");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("b\u09fe\u0323")), "b\u09fe\u0323");
}

// U+11A8 is the first trailing consonant; U+11A7 in front of it is none.
TEST(Tokenizer, ComposesASyllableWithATrailingConsonantAlone) {
  Json json = byte_level_json();
  json["normalizer"] = {{"type", "NFC"}};
  const auto tokenizer = tokenizer_of(json);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("\uac00\u11a8")), "\uac01");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("\uac00\u11a7")), "\uac00\u11a7");
}

TEST(Tokenizer, RemembersPiecesWithoutAnotherResult) {
  const auto tokenizer = tokenizer_of(byte_level_json());
  TokenEncoder encoder(tokenizer);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 20000; ++i) {
      const std::string text = fmt::format("{} abc", i);
      Ids ids;
      encoder.encode(text, ids);
      ASSERT_EQ(tokenizer.decode(ids), text);
    }
  }
}

TEST(Tokenizer, RefusesTextThatIsNoUtf8) {
  const auto tokenizer = tokenizer_of(byte_level_json());
  EXPECT_EQ(test::message_of<ConfigError>([&] { tokenizer.encode("ab\xff"); }),
            "the text is no UTF-8 at byte 2 of 3; convert it to UTF-8");
}

TEST(Tokenizer, ReadsMergesAsTextsAndAsPairs) {
  Json pairs = byte_level_json();
  pairs["model"]["merges"] = Json::array({Json::array({"b", "c"}), Json::array({"a", "bc"}),
                                          Json::array({"\u0120", "a"}), Json::array({"\u0120a", "bc"})});
  EXPECT_EQ(plain(tokenizer_of(pairs), "abc abc bca"), plain(tokenizer_of(byte_level_json()), "abc abc bca"));
}

TEST(Tokenizer, TakesAWholePieceWhereMergesAreIgnored) {
  Json json = byte_level_json();
  json["model"]["vocab"]["xyz"] = 260;  // no merge leads to it
  EXPECT_THAT(plain(tokenizer_of(json), "xyz"), ElementsAre('x', 'y', 'z'));
  json["model"]["ignore_merges"] = true;
  EXPECT_THAT(plain(tokenizer_of(json), "xyz xyz"), ElementsAre(260, ' ', 'x', 'y', 'z'));
}

TEST(AddedTokens, AreFoundLeftmostAndLongest) {
  Json json = byte_level_json();
  json["added_tokens"] = Json::array({added_token(260, "<a"), added_token(261, "<a>"), added_token(262, "a>b")});
  const auto tokenizer = tokenizer_of(json);
  EXPECT_THAT(plain(tokenizer, "x<a>b"), ElementsAre('x', 261, 'b'));
  EXPECT_THAT(plain(tokenizer, "x<ax"), ElementsAre('x', 260, 'x'));
  EXPECT_THAT(plain(tokenizer, "<a>b<a"), ElementsAre(261, 'b', 260));
  EXPECT_EQ(tokenizer.size(), 263);
  EXPECT_EQ(tokenizer.id_limit(), 263);
  EXPECT_EQ(tokenizer.decode(Ids{261, 262}), "<a>a>b");
}

TEST(AddedTokens, TakeTheSpaceBesideThemAndWantNoWordThere) {
  Json json = byte_level_json();
  json["added_tokens"] =
      Json::array({added_token(260, "<l>", {{"lstrip", true}}), added_token(261, "<r>", {{"rstrip", true}}),
                   added_token(262, "one", {{"single_word", true}})});
  const auto tokenizer = tokenizer_of(json);
  EXPECT_THAT(plain(tokenizer, "x \u3000<l> y"), ElementsAre('x', 260, ' ', 'y'));
  EXPECT_THAT(plain(tokenizer, "<r> \n y<r>"), ElementsAre(261, 'y', 261));
  EXPECT_THAT(plain(tokenizer, "<r>  <l>"), ElementsAre(261, 260));  // what the first took is gone
  EXPECT_THAT(plain(tokenizer, "one"), ElementsAre(262));
  EXPECT_THAT(plain(tokenizer, "one.one"), ElementsAre(262, '.', 262));
  EXPECT_THAT(plain(tokenizer, "ones"), ElementsAre('o', 'n', 'e', 's'));
  EXPECT_THAT(plain(tokenizer, "_one"), ElementsAre('_', 'o', 'n', 'e'));
}

TEST(AddedTokens, AreSearchedBeforeOrAfterTheNormalizer) {
  Json json = byte_level_json();
  json["normalizer"] = {{"type", "Lowercase"}};
  json["added_tokens"] = Json::array({added_token(260, "<A>"), added_token(261, "<B>", {{"normalized", true}})});
  const auto tokenizer = tokenizer_of(json);
  EXPECT_THAT(plain(tokenizer, "<A>"), ElementsAre(260));
  EXPECT_THAT(plain(tokenizer, "<a>"), ElementsAre('<', 'a', '>'));
  EXPECT_THAT(plain(tokenizer, "<B>x<b>"), ElementsAre(261, 'x', 261));
}

TEST(AddedTokens, ThatAreSpecialAreSkippedOrSplitWhenAsked) {
  Json json = byte_level_json();
  json["added_tokens"] = Json::array({added_token(260, "<a>", {{"special", true}}), added_token(261, "<b>")});
  const auto tokenizer = tokenizer_of(json);
  EXPECT_TRUE(tokenizer.is_special(260));
  EXPECT_FALSE(tokenizer.is_special(261));
  EXPECT_EQ(tokenizer.decode(Ids{'x', 260, 261}, true), "x<b>");
  EXPECT_THAT(tokenizer.encode("<a><b>", {.split_special_tokens = true}), ElementsAre('<', 'a', '>', 261));
}

TEST(LlamaTokenizer, WritesSpacesAsCharactersAndUnknownOnesAsBytes) {
  const auto tokenizer = tokenizer_of(llama_json());
  EXPECT_THAT(tokenizer.encode("hi  hi"), ElementsAre(1, 264, 259, 264));
  EXPECT_THAT(plain(tokenizer, "h\u00e9\u4f60"), ElementsAre(259, 260, 262, 3 + 0xe4, 3 + 0xbd, 3 + 0xa0));
  EXPECT_THAT(plain(tokenizer, "hi</s>hi"), ElementsAre(264, 2, 264));
  EXPECT_EQ(tokenizer.decode(plain(tokenizer, " hi \u4f60\nhi")), " hi \u4f60\nhi");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("hi")), "<s> hi");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("hi"), true), "hi");
  EXPECT_EQ(tokenizer.decode(Ids{264, 3 + 0xe4, 3 + 0xbd, 260}), "hi\ufffd\ufffdh");
}

TEST(LlamaTokenizer, FusesUnknownCharactersWhenTold) {
  Json json = llama_json();
  json["model"]["byte_fallback"] = false;
  EXPECT_THAT(plain(tokenizer_of(json), "xyh"), ElementsAre(259, 0, 260));
  json["model"]["fuse_unk"] = false;
  EXPECT_THAT(plain(tokenizer_of(json), "xyh"), ElementsAre(259, 0, 0, 260));
}

TEST(LlamaTokenizer, ReadsMetaspaceAsNewerFilesHaveIt) {
  Json json = llama_json();
  json["normalizer"] = nullptr;
  const auto with = [&](const char* scheme, bool split) {
    json["pre_tokenizer"] = {
        {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", scheme}, {"split", split}};
    return plain(tokenizer_of(json), "hi hi</s>hi");
  };
  EXPECT_THAT(with("always", true), ElementsAre(264, 264, 2, 264));
  EXPECT_THAT(with("first", false), ElementsAre(264, 264, 2, 263));
  EXPECT_THAT(with("never", true), ElementsAre(263, 264, 2, 263));
  json["decoder"] = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}};
  EXPECT_EQ(tokenizer_of(json).decode(Ids{264, 264}), "hi hi");
}

TEST(LlamaTokenizer, CutsDigitsOneByOneOrTogether) {
  Json json = byte_level_json();
  json["model"]["vocab"]["12"] = 260;
  json["model"]["merges"].push_back("1 2");
  json["pre_tokenizer"]["use_regex"] = false;
  const Json byte_level = json["pre_tokenizer"];
  for (const bool individual : {false, true}) {
    json["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers", Json::array({{{"type", "Digits"}, {"individual_digits", individual}}, byte_level})}};
    const Ids expected = individual ? Ids{'a', '1', '2', 'b'} : Ids{'a', 260, 'b'};
    EXPECT_EQ(plain(tokenizer_of(json), "a12b"), expected);
  }
}

// Each text that a stream gives, all of them, and what is given at the end.
std::vector<std::string> streamed(const Tokenizer& tokenizer, const Ids& ids) {
  TokenStream stream(tokenizer);
  std::vector<std::string> texts;
  for (const TokenId id : ids) texts.push_back(stream.push(id));
  texts.push_back(stream.finish());
  return texts;
}

TEST(TokenStream, GivesNoHalfCharacter) {
  const auto tokenizer = tokenizer_of(byte_level_json());
  EXPECT_THAT(streamed(tokenizer, {'a', 0xe4, 0xbd, 0xa0, 'b'}), ElementsAre("a", "", "", "\u4f60", "b", ""));
  EXPECT_THAT(streamed(tokenizer, {0xf0, 0x9f, 0x98}), ElementsAre("", "", "", "\ufffd"));
  EXPECT_THAT(streamed(tokenizer, {0xe4, 'x', 0x80, 0xff}), ElementsAre("", "\ufffdx", "\ufffd", "\ufffd", ""));
}

TEST(TokenStream, HoldsARunOfFallbackBytesAndTheFirstSpace) {
  const auto tokenizer = tokenizer_of(llama_json());
  EXPECT_THAT(streamed(tokenizer, {259, 264, 3 + 0xe4, 3 + 0xbd, 3 + 0xa0, 260, 3 + 0xff}),
              ElementsAre("", " hi", "", "", "", "\u4f60h", "", "\ufffd"));
  EXPECT_THAT(streamed(tokenizer, {}), ElementsAre(""));
}

TEST(TokenStream, TogetherIsTheWholeTextForAnyIds) {
  for (const Json& json : {byte_level_json(), llama_json()}) {
    const auto tokenizer = tokenizer_of(json);
    std::mt19937 random(11);
    for (int round = 0; round < 1000; ++round) {
      Ids ids;
      for (int i = 0; i < 12; ++i) ids.push_back(static_cast<TokenId>(random() % 270));
      std::string all;
      for (const std::string& text : streamed(tokenizer, ids)) {
        ASSERT_EQ(invalid_utf8(text), std::nullopt);
        all += text;
      }
      ASSERT_EQ(all, tokenizer.decode(ids));
    }
  }
}

// Oniguruma's library has a regcomp of its own, whose flags have other values.
TEST(TokenizerLibraries, LeaveThePosixExpressionsOfAProcessToTheCLibrary) {
  regex_t compiled;
  ASSERT_EQ(regcomp(&compiled, "^(a|bc)+$", REG_EXTENDED | REG_NOSUB), 0);
  EXPECT_EQ(regexec(&compiled, "abca", 0, nullptr, 0), 0);
  EXPECT_EQ(regexec(&compiled, "ab", 0, nullptr, 0), REG_NOMATCH);
  regfree(&compiled);
}

}  // namespace
}  // namespace loom::data
