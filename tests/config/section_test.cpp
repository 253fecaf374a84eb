// Promise: a section gives typed values, and refuses keys that no table and no look-up knows, with the nearest spelling.
#include "engine/config/section.h"

#include <gmock/gmock.h>

#include "engine/config/document.h"
#include "engine/core/error.h"

namespace loom::config {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Section asked(const std::string& text) { return {parse_yaml(text, "f.yaml"), UnknownKeys::kRefused}; }

template <class F>
std::string refusal(F&& act) {
  try {
    act();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing is refused";
}

std::string table_refusal(const std::string& text) {
  return refusal([&] {
    Section(
        parse_yaml(text, "f.yaml"),
        {.required = {"size", "rate"}, .optional = {"note"}, .document = "the toy", .advice = "there is no default"});
  });
}

TEST(Section, ReadsByType) {
  const Section s = asked("n: 3\nx: 0.5\non: yes\nt: word\nlist: [1, 2]\nwords: [a, \"2\"]\nin: {deep: 4}\nnone: ~\n");
  EXPECT_EQ(s.count("n"), 3);
  EXPECT_EQ(s.integer("n"), 3);
  EXPECT_EQ(s.number("x"), 0.5);
  EXPECT_EQ(s.number("n"), 3.0);
  EXPECT_TRUE(s.flag("on", false));
  EXPECT_EQ(s.text("t"), "word");
  EXPECT_THAT(s.integers("list"), ElementsAre(1, 2));
  EXPECT_THAT(s.integers("n"), ElementsAre(3));
  EXPECT_THAT(s.texts("words"), ElementsAre("a", "2"));
  EXPECT_EQ(s.mapping("in")->count("deep"), 4);
  EXPECT_FALSE(s.has("none"));
  EXPECT_NE(s.given("none"), nullptr);
  EXPECT_EQ(s.count("absent", 7), 7);
  EXPECT_THAT(s.texts("absent"), IsEmpty());
  EXPECT_FALSE(s.mapping("absent").has_value());
  EXPECT_NO_THROW(s.refuse_unread());
}

TEST(Section, WrongTypesAreRefusedWithTheValue) {
  const Section s = asked("n: a\nzero: 0\nb: 1\nt: 5\nin: {deep: x}\n");
  EXPECT_EQ(refusal([&] { s.count("n"); }), "f.yaml:1:1: n is \"a\"; a whole number is expected");
  EXPECT_EQ(refusal([&] { s.count("zero"); }), "f.yaml:2:1: zero is 0; it must be at least 1");
  EXPECT_EQ(refusal([&] { s.positive("zero", 1); }), "f.yaml:2:1: zero is 0; it must be greater than 0");
  EXPECT_EQ(refusal([&] { s.flag("b", true); }), "f.yaml:3:1: b is 1; true or false is expected");
  EXPECT_EQ(refusal([&] { s.text("t"); }), "f.yaml:4:1: t is 5; a text is expected");
  EXPECT_EQ(refusal([&] { s.texts("t"); }), "f.yaml:4:1: t is 5; a list of texts is expected");
  EXPECT_EQ(refusal([&] { s.mapping("t"); }), "f.yaml:4:1: t is 5; a mapping is expected");
  EXPECT_EQ(refusal([&] { s.mapping("in")->number("deep"); }), "f.yaml:5:6: in.deep is \"x\"; a number is expected");
  EXPECT_EQ(refusal([&] { s.count("lost"); }), "f.yaml: lost is missing");
}

TEST(Section, KeysNobodyAskedForAreRefused) {
  const Section s = asked("size: 1\nsise: 2\n");
  s.count("size");
  EXPECT_EQ(refusal([&] { s.refuse_unread(); }), "f.yaml:2:1: unknown key 'sise'; did you mean 'size'?");
  EXPECT_EQ(refusal([] { asked("sise: 2").count("size"); }), "f.yaml:1:1: unknown key 'sise'; did you mean 'size'?");
}

TEST(Section, ATableKnowsItsKeys) {
  EXPECT_EQ(table_refusal("size: 1\nrate: 2\n"), "nothing is refused");
  EXPECT_EQ(table_refusal("size: 1\nrate: 2\nnote: ~\n"), "nothing is refused");
  EXPECT_EQ(table_refusal("size: 1\nraet: 2\n"), "f.yaml:2:1: unknown key 'raet'; did you mean rate?");
  EXPECT_EQ(table_refusal("size: 1\nflavour: 2\n"), "f.yaml:2:1: unknown key 'flavour'; the keys are size, rate, note");
  EXPECT_EQ(table_refusal("size: 1\n"), "f.yaml: the toy has no rate; there is no default");
}

TEST(Section, OthersFilesMayHoldMore) {
  const Section s(parse_json(R"({"a": 1, "b": 2})", "f.json"), UnknownKeys::kMayBe);
  EXPECT_FALSE(s.strict());
  EXPECT_EQ(s.count("a"), 1);
  EXPECT_EQ(s.where("b"), "f.json");
}

}  // namespace
}  // namespace loom::config
