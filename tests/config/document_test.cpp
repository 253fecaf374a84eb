// Promise: a file is one mapping whose keys stand once, or it is refused with file, line and column.
#include "engine/config/document.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"

namespace loom::config {
namespace {

using ::testing::HasSubstr;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

std::string refusal(const std::string& text, const DocumentWords& words = {}) {
  try {
    parse_yaml(text, "f.yaml", words);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing is refused";
}

TEST(Yaml, ValuesCarryPathsAndPlaces) {
  const Value document = parse_yaml("a: 1\nb:\n  - c: x\n  -\n", "f.yaml");
  const Value& entry = document.items().at(1).items().at(0);
  EXPECT_EQ(entry.path(), "b[0]");
  EXPECT_EQ(entry.place(), (Place{{"f.yaml", 3, 5}, {"f.yaml", 3, 5}}));
  EXPECT_EQ(entry.items().at(0).path(), "b[0].c");
  EXPECT_EQ(entry.items().at(0).place(), (Place{{"f.yaml", 3, 5}, {"f.yaml", 3, 8}}));
  EXPECT_EQ(document.items().at(1).items().at(1).where(), "f.yaml:2:1");
}

TEST(Yaml, AFileIsOneMapping) {
  EXPECT_EQ(refusal(""), "f.yaml: the file has no keys; write key: value lines");
  EXPECT_EQ(refusal("- a"), "f.yaml:1:1: the file is a list; write key: value lines");
  EXPECT_EQ(refusal("a"), "f.yaml:1:1: the file is a single value; write key: value lines");
  EXPECT_EQ(refusal("a: 1\n---\nb: 2"),
            "f.yaml:2:1: a second YAML document begins here; keep one document of key: value lines");
  EXPECT_EQ(refusal("a: [1"),
            "f.yaml:2:1: not readable as YAML (a [ is not closed with ]); check indentation, colons and quotes "
            "here and in the line above");
}

TEST(Yaml, KeysAreScalarsAndStandOnceAtEveryDepth) {
  EXPECT_EQ(refusal("a: 1\na: 2"), "f.yaml:2:1: a is given again, first at line 1; keep one");
  EXPECT_EQ(refusal("a:\n  - {b: 1, b: 2}"), "f.yaml:2:12: a[0].b is given again, first at line 2; keep one");
  EXPECT_EQ(refusal("? [a]\n: b"), "f.yaml:1:3: a key is a list; write key: value lines");
}

TEST(Yaml, AliasesCannotBeWithoutEnd) {
  EXPECT_EQ(refusal("a: &x [*x]").substr(0, 11), "f.yaml:1:4:");
  EXPECT_THAT(refusal("a: &x [*x]"),
              HasSubstr("nested deeper than 64 levels; an alias may be inside the value that it names"));
  std::string laughs = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n";
  for (int i = 1; i < 9; ++i) {
    laughs += fmt::format("a{}: &a{} [", i, i);
    for (int j = 0; j < 10; ++j) laughs += fmt::format("{}*a{}", j == 0 ? "" : ", ", i - 1);
    laughs += "]\n";
  }
  EXPECT_EQ(refusal(laughs), "f.yaml: more than 1000000 values; aliases repeat too much");
}

TEST(Yaml, AReaderMaySayThingsItsOwnWay) {
  const DocumentWords words{.unreadable = "{where}: {problem}!",
                            .unknown_alias = "{where}: quote it",
                            .empty = "{file}: nothing",
                            .no_mapping = "{file}: {kind}?",
                            .repeated = "{where}: {path} twice, {first}"};
  EXPECT_EQ(refusal("a: [1", words), "f.yaml:2:1: a [ is not closed with ]!");
  EXPECT_EQ(refusal("a: *b", words), "f.yaml:1:4: quote it");
  EXPECT_EQ(refusal("", words), "f.yaml: nothing");
  EXPECT_EQ(refusal("- a", words), "f.yaml: a list?");
  EXPECT_EQ(refusal("a: 1\na: 1", words), "f.yaml:2:1: a twice, 1");
}

TEST(Json, IsAnObject) {
  const Value document = parse_json(R"({"a": 1, "b": [{"c": "x"}]})", "f.json");
  EXPECT_EQ(document.find("a")->whole(), 1);
  EXPECT_EQ(document.find("b")->items().at(0).items().at(0).path(), "b[0].c");
  EXPECT_EQ(document.find("b")->where(), "f.json");
  EXPECT_THAT([] { parse_json("[1]", "f.json"); },
              ThrowsMessage<ConfigError>(StrEq("f.json: a JSON object is expected, not array")));
  EXPECT_THAT([] { parse_json("{\"a\": 1e999}", "f.json"); },
              ThrowsMessage<ConfigError>(StrEq("f.json: not valid JSON (a number is out of range)")));
  EXPECT_THAT([] { parse_json("{]", "f.json"); },
              ThrowsMessage<ConfigError>(StrEq("f.json: not valid JSON (at byte 2 of 2)")));
  EXPECT_THAT([] { parse_json("{\"a\":" + std::string(100, '['), "f.json"); },
              ThrowsMessage<ConfigError>(StrEq("f.json: nested deeper than 64 levels")));
}

TEST(Text, OfAFolderOrOfNothingIsRefused) {
  EXPECT_THAT([] { read_text("/", "a file"); },
              ThrowsMessage<ConfigError>(StrEq("/: is a folder; give the path of the YAML file itself")));
  EXPECT_THAT([] { read_text("nowhere/f.yaml", "an existing file"); },
              ThrowsMessage<ConfigError>(
                  StrEq("nowhere/f.yaml: No such file or directory; give the path of an existing file")));
}

}  // namespace
}  // namespace loom::config
