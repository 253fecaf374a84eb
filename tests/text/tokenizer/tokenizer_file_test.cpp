// Promise: a tokenizer file that is malformed, or asks for what is not read, is refused with file, key and next
//          step; special ids are those that the files beside it name.
// World:   small files, each with one thing wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/text/tokenizer/special_ids.h"
#include "tests/support/files.h"
#include "tests/support/tokenizer_files.h"

namespace loom::data {
namespace {

namespace fs = std::filesystem;
using test::added_token;
using test::byte_level_json;
using test::fresh_folder;
using test::tokenizer_of;
using test::write_file;
using ::testing::ElementsAre;
using ::testing::StartsWith;

// The message about a file in which `value` stands at `pointer` (/model/type).
std::string refusal(const char* pointer, const test::Json& value) {
  test::Json json = byte_level_json();
  json[test::Json::json_pointer(pointer)] = value;
  return test::message_of<ConfigError>([&] { tokenizer_of(json); });
}

TEST(TokenizerFile, NamesWhatIsNotRead) {
  EXPECT_EQ(refusal("/model/type", "WordPiece"), "tokenizer.json: model.type is \"WordPiece\"; use BPE");
  EXPECT_EQ(
      refusal("/normalizer", {{"type", "Nmt"}}),
      "tokenizer.json: normalizer.type is \"Nmt\"; use NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip or "
      "Sequence");
  EXPECT_EQ(refusal("/pre_tokenizer",
                    {{"type", "Sequence"}, {"pretokenizers", test::Json::array({{{"type", "Whitespace"}}})}}),
            "tokenizer.json: pre_tokenizer.pretokenizers[0].type is \"Whitespace\"; use ByteLevel, Split, Digits, "
            "Metaspace or Sequence");
  EXPECT_EQ(refusal("/post_processor", {{"type", "BertProcessing"}}),
            "tokenizer.json: post_processor.type is \"BertProcessing\"; use ByteLevel, TemplateProcessing or Sequence");
  EXPECT_EQ(refusal("/decoder", {{"type", "CTC"}}),
            "tokenizer.json: decoder.type is \"CTC\"; use ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace or "
            "Sequence");
  EXPECT_EQ(refusal("/truncation", {{"max_length", 5}}),
            "tokenizer.json: truncation is an object; Shardloom cuts and pads by its own flags; write null");
  EXPECT_EQ(refusal("/model/dropout", 0.1),
            "tokenizer.json: model.dropout is 0.1; encoding would not be the same twice; use null");
  EXPECT_EQ(refusal("/model/end_of_word_suffix", "</w>"),
            "tokenizer.json: model.end_of_word_suffix is \"</w>\"; Shardloom reads no BPE with it; use null");
  EXPECT_EQ(refusal("/pre_tokenizer/shape", 1),
            "tokenizer.json: pre_tokenizer.shape is not read by Shardloom; the keys here are type, add_prefix_space, "
            "trim_offsets, use_regex");
}

TEST(TokenizerFile, NamesTokensAndMergesThatDoNotFit) {
  EXPECT_EQ(refusal("/model/vocab/x", 1),
            "tokenizer.json: model.vocab: 'x' and '\u0101' have the same id 1; give each token its own");
  EXPECT_EQ(refusal("/model/vocab/x", 1000000000),
            "tokenizer.json: model.vocab: the id of 'x' is 1000000000; use a whole number from 0 to 69695");
  EXPECT_EQ(refusal("/model/vocab/x", -1),
            "tokenizer.json: model.vocab: the id of 'x' is -1; use a whole number from 0 to 69695");
  EXPECT_EQ(refusal("/model/merges/0", "q qq"),
            "tokenizer.json: model.merges[0] is \"q qq\"; the vocabulary has no token 'qq'");
  EXPECT_EQ(refusal("/model/merges/1", "c b"),
            "tokenizer.json: model.merges[1] is \"c b\"; the vocabulary has no token 'cb'");
  EXPECT_EQ(refusal("/model/merges/1", "abc"),
            "tokenizer.json: model.merges[1] is \"abc\"; use two tokens with one space between them, or a list of two");
  EXPECT_EQ(refusal("/model/merges/1", test::Json::array({"a"})),
            "tokenizer.json: model.merges[1] is a list; use a list of two tokens");
  EXPECT_EQ(refusal("/model/unk_token", "<unk>"),
            "tokenizer.json: model.unk_token is \"<unk>\"; the vocabulary has no token '<unk>'");
}

TEST(TokenizerFile, NamesAddedTokensThatDoNotFit) {
  EXPECT_EQ(refusal("/added_tokens", test::Json::array({added_token(300, "<a>")})),
            "tokenizer.json: added_tokens[0].id is 300; '<a>' is not in the vocabulary, and the next free id is 260; "
            "write 260");
  EXPECT_EQ(refusal("/added_tokens", test::Json::array({added_token(260, "abc")})),
            "tokenizer.json: added_tokens[0].id is 260; 'abc' is in the vocabulary as 258; write 258");
  EXPECT_EQ(refusal("/added_tokens", test::Json::array({added_token(260, "<a>"), added_token(261, "<a>")})),
            "tokenizer.json: added_tokens[1].content is \"<a>\"; it is given twice; keep one");
  EXPECT_EQ(refusal("/added_tokens", test::Json::array({added_token(260, "")})),
            "tokenizer.json: added_tokens[0].content is \"\"; an empty token is nowhere; take it out");
}

TEST(TokenizerFile, NamesPatternsThatAreNone) {
  const test::Json split = {
      {"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}, {"invert", false}};
  EXPECT_EQ(refusal("/pre_tokenizer", split),
            "tokenizer.json: pre_tokenizer.pattern.Regex is '(a', which is no regular expression: end pattern with "
            "unmatched parenthesis; correct it");
  test::Json odd = split;
  odd["pattern"] = {{"String", "x"}};
  odd["behavior"] = "Halved";
  EXPECT_EQ(refusal("/pre_tokenizer", odd),
            "tokenizer.json: pre_tokenizer.behavior is \"Halved\"; use Removed, Isolated, MergedWithPrevious, "
            "MergedWithNext or Contiguous");
  odd["behavior"] = "Isolated";
  odd["pattern"]["String"] = "";
  EXPECT_EQ(refusal("/pre_tokenizer", odd),
            "tokenizer.json: pre_tokenizer.pattern.String is \"\"; an empty pattern matches nothing; write one");
}

TEST(TokenizerFile, NamesTextThatIsNoJsonOrHasAKeyTwice) {
  const auto refused = [](std::string_view text) {
    return test::message_of<ConfigError>([&] { Tokenizer::parse(text, "tokenizer.json"); });
  };
  EXPECT_EQ(refused("{"), "tokenizer.json: not valid JSON (at byte 2 of 1)");
  EXPECT_EQ(refused(R"({"model":{"vocab":{"a":0,"a":1}}})"), "tokenizer.json: key 'a' is given twice; keep one");
  EXPECT_EQ(refused(std::string(100, '[')), "tokenizer.json: nested deeper than 64 levels");
  EXPECT_EQ(refused("{}"), "tokenizer.json: model is missing; write it");
  EXPECT_EQ(refused("[]"), "tokenizer.json: the document is a list; use an object");
}

TEST(TokenizerFile, IsFoundInItsFolder) {
  const fs::path folder = fresh_folder();
  EXPECT_THAT(test::message_of<ConfigError>([&] { Tokenizer::from_file(folder); }),
              StartsWith((folder / "tokenizer.json").string()));
  write_file(folder / "tokenizer.json", byte_level_json().dump());
  EXPECT_EQ(Tokenizer::from_file(folder).size(), 260);
  EXPECT_EQ(Tokenizer::from_file(folder / "tokenizer.json").size(), 260);
}

class SpecialIdFiles : public ::testing::Test {
 protected:
  SpecialIdFiles() {
    test::Json json = byte_level_json();
    json["added_tokens"] =
        test::Json::array({added_token(260, "<s>"), added_token(261, "</s>"), added_token(262, "<end>")});
    tokenizer_.emplace(tokenizer_of(json));
  }
  SpecialIds read() { return read_special_ids(folder_, *tokenizer_); }
  void config(const test::Json& json) { write_file(folder_ / "tokenizer_config.json", json.dump()); }
  void generation(const test::Json& json) { write_file(folder_ / "generation_config.json", json.dump()); }
  std::string refusal() {
    const std::string text = test::message_of<ConfigError>([&] { read(); });
    return text.substr(folder_.string().size() + 1);
  }

  fs::path folder_ = fresh_folder();
  std::optional<Tokenizer> tokenizer_;
};

TEST_F(SpecialIdFiles, AreReadInTheirOrder) {
  EXPECT_EQ(read().eos, std::nullopt);
  generation({{"bos_token_id", 260}, {"eos_token_id", test::Json::array({262, 261})}, {"pad_token_id", 262}});
  EXPECT_EQ(read().eos, 262);
  write_file(folder_ / "special_tokens_map.json", R"({"eos_token": {"content": "</s>"}})");
  EXPECT_EQ(read().eos, 261);
  config({{"eos_token", "<s>"}, {"pad_token", nullptr}, {"model_max_length", 5}});
  const SpecialIds special = read();
  EXPECT_EQ(special.eos, 260);
  EXPECT_EQ(special.bos, 260);
  EXPECT_EQ(special.pad, 262);
  EXPECT_EQ(special.unk, std::nullopt);
  EXPECT_THAT(special.stop, ElementsAre(262, 261));
}

TEST_F(SpecialIdFiles, EndGeneratedTextsWithEosWhereNothingElseIsNamed) {
  config({{"eos_token", {{"content", "</s>"}}}});
  EXPECT_THAT(read().stop, ElementsAre(261));
}

TEST_F(SpecialIdFiles, ThatDoNotFitTheTokenizerAreRefused) {
  config({{"eos_token", "<eot>"}});
  EXPECT_EQ(
      refusal(),
      "tokenizer_config.json: eos_token is \"<eot>\"; the tokenizer has no token '<eot>'; add it to added_tokens of "
      "tokenizer.json");
  config({{"added_tokens_decoder", {{"262", {{"content", "</s>"}}}}}});
  EXPECT_EQ(
      refusal(),
      "tokenizer_config.json: added_tokens_decoder.262.content is \"</s>\"; tokenizer.json gives it the id 261; the "
      "two files are of different tokenizers");
  config(test::Json::object());
  generation({{"eos_token_id", test::Json::array({260, 263})}});
  EXPECT_EQ(refusal(), "generation_config.json: eos_token_id[1] is 263; use a whole number from 0 to 262");
}

}  // namespace
}  // namespace loom::data
