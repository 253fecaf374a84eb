// Promise: a scalar means what Python's YAML reads, JSON and YAML give the same values, and messages show what the user
// wrote.
#include "engine/config/value.h"

#include <cmath>
#include <gmock/gmock.h>

#include "engine/config/document.h"
#include "engine/core/error.h"

namespace loom::config {
namespace {

using ::testing::StrEq;
using ::testing::ThrowsMessage;

Value yaml(const std::string& value) { return parse_yaml("key: " + value, "f.yaml").items().at(0); }
Value json(const std::string& value) { return parse_json("{\"key\": " + value + "}", "f.json").items().at(0); }

TEST(Value, BooleansAreThoseOfPythonsYaml) {
  for (const char* word : {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"}) {
    EXPECT_EQ(yaml(word).boolean(), true) << word;
  }
  for (const char* word : {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"}) {
    EXPECT_EQ(yaml(word).boolean(), false) << word;
  }
  for (const char* word : {"y", "n", "1", "0", "\"true\"", "tRUE", "!!bool true", "[true]", "null"}) {
    EXPECT_EQ(yaml(word).boolean(), std::nullopt) << word;
  }
  EXPECT_EQ(json("true").boolean(), true);
  EXPECT_EQ(json("\"true\"").boolean(), std::nullopt);
}

TEST(Value, WholeNumbersAreDecimalDigits) {
  EXPECT_EQ(yaml("12").whole(), 12);
  EXPECT_EQ(yaml("-3").whole(), -3);
  EXPECT_EQ(yaml("9223372036854775807").whole(), 9223372036854775807);
  for (const char* text : {"010", "0x10", "1.0", "1e3", "+1", "\"1\"", "9223372036854775808", "1 2", "[1]"}) {
    EXPECT_EQ(yaml(text).whole(), std::nullopt) << text;
  }
  EXPECT_EQ(json("12").whole(), 12);
  EXPECT_EQ(json("12.0").whole(), std::nullopt);
}

TEST(Value, NumbersMayHaveAFractionAndAnExponent) {
  EXPECT_EQ(yaml("989.4e12").number(), 989.4e12);
  EXPECT_EQ(yaml("-0.5").number(), -0.5);
  EXPECT_EQ(yaml("7").number(), 7.0);
  EXPECT_EQ(yaml("-.inf").number(), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(yaml(".nan").number().value_or(0)));
  for (const char* text : {"inf", "nan", "64GiB", "\"1\"", "true"})
    EXPECT_EQ(yaml(text).number(), std::nullopt) << text;
  EXPECT_EQ(json("1e-6").number(), 1e-6);
}

TEST(Value, TextIsWhatIsInQuotesOrNothingElse) {
  for (const char* text : {"auto", "\"1\"", "'true'", "inf", "0x", "!!str 5"})
    EXPECT_TRUE(yaml(text).is_text()) << text;
  for (const char* text : {"1", "1.5", "yes", "[a]", "{a: b}", "null", "~"}) EXPECT_FALSE(yaml(text).is_text()) << text;
  EXPECT_EQ(yaml("\"a b\"").scalar(), "a b");
}

TEST(Value, IsShownAsItWasWritten) {
  EXPECT_EQ(yaml("64GiB").shown(), "64GiB");
  EXPECT_EQ(yaml("\"64\"").shown(), "\"64\"");
  EXPECT_EQ(yaml("[1]").shown(), "a list");
  EXPECT_EQ(yaml("{a: 1}").shown(), "a mapping");
  EXPECT_EQ(yaml("~").shown(), "empty");
  EXPECT_EQ(yaml("!!str 5").shown(), "a value with the tag tag:yaml.org,2002:str");
  EXPECT_EQ(json("1e-6").shown(), "1e-6");
}

TEST(Value, IsOneLineOfJson) {
  const char* kText = R"({"a":[1,2.50,"x\"y",null],"b":{"c":true}})";
  EXPECT_EQ(json(kText).json(), kText);
  EXPECT_EQ(yaml("{a: [1, 2.50, 'x\"y', ~], b: {c: true}}").json(), kText);
}

TEST(Value, RefusalsNamePlacePathAndValue) {
  const Value levels = yaml("[{a: 5}]");
  EXPECT_THAT([&] { levels.items().at(0).items().at(0).refuse("a text"); },
              ThrowsMessage<ConfigError>(StrEq("f.yaml:1:11: key[0].a is 5; use a text")));
  EXPECT_THAT([] { json("[5]").items().at(0).refuse("a text"); },
              ThrowsMessage<ConfigError>(StrEq("f.json: key[0] is 5; use a text")));
  // An empty value stands where its key does.
  EXPECT_THAT([] { yaml("").refuse("a text"); },
              ThrowsMessage<ConfigError>(StrEq("f.yaml:1:1: key is empty; use a text")));
}

}  // namespace
}  // namespace loom::config
