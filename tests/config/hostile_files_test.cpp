// Promise: a file that is no configuration, or was made to harm, is refused with file and line, at once, in one line
//          that shows nothing raw of it.
#include <unistd.h>

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "engine/config/document.h"
#include "engine/config/section.h"
#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::config {
namespace {

using test::message_of;
using ::testing::HasSubstr;

std::string file_refusal(const std::filesystem::path& path) {
  return message_of<ConfigError>([&] { read_text(path, "an existing file"); });
}
std::string yaml_refusal(const std::string& text) {
  return message_of<ConfigError>([&] { parse_yaml(text, "f.yaml"); });
}
std::string json_refusal(const std::string& text) {
  return message_of<ConfigError>([&] { parse_json(text, "f.json"); });
}

std::string unreadable(const std::string& where, const std::string& problem) {
  return where + ": not readable as YAML (" + problem +
         "); check indentation, colons and quotes here and in the line above";
}

// --- What is no file

TEST(HostileFiles, PipesSocketsAndDevicesAreNamedWithoutWaiting) {
  const auto folder = test::fresh_folder();
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(file_refusal(pipe), pipe + ": is a pipe; give the path of a regular file");
  EXPECT_EQ(file_refusal("/dev/zero"), "/dev/zero: is a device; give the path of a regular file");
  ASSERT_EQ(::chdir(folder.c_str()), 0);  // a socket's path is short
  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{AF_UNIX, "socket"};
  ASSERT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(file_refusal("socket"), "socket: is a socket; give the path of a regular file");
  ::close(listener);
}

TEST(HostileFiles, SparseGiantsAndLoopsOfLinksAreRefused) {
  const auto folder = test::fresh_folder();
  const auto giant = test::write_file(folder / "giant.yaml", "a: 1\n");
  std::filesystem::resize_file(giant, std::uintmax_t{1} << 40);
  EXPECT_EQ(file_refusal(giant), giant.string() +
                                     ": has 1099511627776 bytes, above the 16777216 that a configuration may have; "
                                     "give the right file");
  std::filesystem::create_symlink("loop", folder / "loop");
  EXPECT_EQ(file_refusal(folder / "loop"),
            (folder / "loop").string() + ": Too many levels of symbolic links; give the path of an existing file");
}

// --- Bytes

TEST(HostileFiles, BytesThatAreNotUtf8AreRefusedWithTheirPlace) {
  EXPECT_EQ(yaml_refusal("a: 1\nb: x\xff\n"), "f.yaml:2:5: the byte \\xff is not UTF-8; save the file as UTF-8");
  EXPECT_EQ(json_refusal("{\"a\":\n\"\xc3\"}"), "f.json:2:2: the byte \\xc3 is not UTF-8; save the file as UTF-8");
  EXPECT_EQ(parse_yaml("a: 模型\n", "f.yaml").find("a")->scalar(), "模型");
}

TEST(HostileFiles, KeysAndNamesAreEscapedAndCut) {
  EXPECT_EQ(yaml_refusal("\"\\e[2J\\nok\": {b: 1, b: 2}\n"),
            "f.yaml:1:21: \\x1b[2J\\nok.b is given again, first at line 1; keep one");
  const std::string key(1 << 20, 'k');
  EXPECT_LT(yaml_refusal(key.substr(0, 1000) + ": {b: 1, b: 2}\n").size(), 400u);
  EXPECT_EQ((SourceMark{"a\nb.yaml", 1, 2}).text(), "a\\nb.yaml:1:2");
}

TEST(HostileFiles, ValuesOfAMegabyteAreCut) {
  const Value document = parse_yaml("a: " + std::string(1 << 20, 'x') + "\n", "f.yaml");
  EXPECT_EQ(message_of<ConfigError>([&] { document.find("a")->refuse("less"); }),
            "f.yaml:1:4: a is " + std::string(200, 'x') + "... (1048576 bytes); use less");
  std::string list = "{\"a\": [0";
  for (int i = 0; i < 10000; ++i) list += ",0";
  const Section section(parse_json(list + "]}", "f.json"), UnknownKeys::kMayBe);
  EXPECT_EQ(message_of<ConfigError>([&] { section.count("a"); }).substr(0, 20), "f.json: a is [0,0,0,");
  EXPECT_LT(message_of<ConfigError>([&] { section.count("a"); }).size(), 300u);
}

// --- Depth and number

TEST(HostileFiles, DeepNestingIsRefusedByBothReaders) {
  const std::string brackets(200000, '[');
  EXPECT_EQ(json_refusal("{\"hidden_act\": " + brackets), "f.json: nested deeper than 64 levels");
  EXPECT_THAT(yaml_refusal("a: " + brackets), HasSubstr("(values are nested too deeply)"));
  EXPECT_THAT(yaml_refusal("a: " + std::string(100, '[') + std::string(100, ']')),
              HasSubstr("nested deeper than 64 levels"));
}

TEST(HostileFiles, AMillionKeysAreReadInTheTimeOfTheirNumber) {
  std::string text;
  for (int i = 0; i < 200000; ++i) text += "\"k" + std::to_string(i) + "\":0,";
  EXPECT_EQ(parse_json("{" + text + "\"z\":0}", "f.json").items().size(), 200001u);
  std::string zeros = "{\"a\":[0";
  for (int i = 0; i < 1000000; ++i) zeros += ",0";
  EXPECT_EQ(json_refusal(zeros + "]}"), "f.json: more than 1000000 values; give the right file");
}

TEST(HostileFiles, AJsonKeyStandsOnceAtEveryDepth) {
  EXPECT_EQ(json_refusal("{\"a\": 1,\n\"a\": 2}"), "f.json:2: a is given again, first at line 1; keep one");
  EXPECT_EQ(json_refusal("{\"a\": [{\"b\": 1,\n\n\"b\": 2}]}"),
            "f.json:3: a[0].b is given again, first at line 1; keep one");
  EXPECT_EQ(parse_json(R"({"a": [{"b": 1}, {"b": 2}]})", "f.json").items().size(), 1u);
}

// --- Words

TEST(HostileFiles, YamlThatCannotBeReadIsExplainedWithoutTheParsersWords) {
  EXPECT_EQ(yaml_refusal("a: 1\n\tb: 2\n"), unreadable("f.yaml:2:1", "a tab indents the line; use spaces"));
  EXPECT_EQ(yaml_refusal("a: 1\nb: \"auto\nc: 2\n"),
            unreadable("f.yaml:2:4", "the quote that opens here is not closed"));
  EXPECT_EQ(yaml_refusal("a: 'it''s\n"), unreadable("f.yaml:1:4", "the quote that opens here is not closed"));
  EXPECT_EQ(yaml_refusal("a: [1"), unreadable("f.yaml:2:1", "a [ is not closed with ]"));
  EXPECT_EQ(yaml_refusal("a: {b: 1"), unreadable("f.yaml:2:1", "a { is not closed with }"));
  EXPECT_EQ(yaml_refusal("a: b: c"), unreadable("f.yaml:1:5", "a colon is not allowed here: no value can follow"));
  EXPECT_THAT(yaml_refusal("a: @b"),
              HasSubstr("(a value begins with a character that YAML reserves; put it in quotes)"));
  EXPECT_THAT(yaml_refusal("a: \"\\q\""),
              HasSubstr("(the escape \\q is not known between double quotes; use single quotes)"));
}

TEST(HostileFiles, QuotesThatCloseAreNoMistake) {
  for (const char* text : {"a: \"x\"", "a: 'it''s'", "a: \"\\\"\"", "a: |\n  \"open\n", "a: it's", "a: \"x\n  y\""}) {
    EXPECT_TRUE(parse_yaml(text, "f.yaml").is_mapping()) << text;
  }
}

TEST(Counts, AboveInt32AreRefusedAtTheirKey) {
  const auto refusal = [](const std::string& text) {
    const Section section(parse_yaml("a: " + text, "f.yaml"), UnknownKeys::kMayBe);
    return message_of<ConfigError>([&] { section.count("a"); });
  };
  EXPECT_EQ(refusal("144115188075855872"), "f.yaml:1:1: a is 144115188075855872; it must be at most 2147483647");
  EXPECT_EQ(refusal("100000000000000000000"), "f.yaml:1:1: a is 100000000000000000000; it must be at most 2147483647");
  EXPECT_EQ(refusal("0"), "f.yaml:1:1: a is 0; it must be at least 1");
  EXPECT_EQ(refusal(".nan"), "f.yaml:1:1: a is .nan; a whole number is expected");
  EXPECT_EQ(refusal("1e9"), "f.yaml:1:1: a is 1e9; a whole number is expected");
}

}  // namespace
}  // namespace loom::config
