// Promise: expressions and statements of chat templates give what Jinja2 gives; what a template may use up is bounded;
//          and what is wrong is refused with the line.
// World:   templates in a string; tests/interop/chat_agrees.py compares more of them with Jinja2 itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/text/template/chat_template.h"
#include "tests/support/files.h"

namespace loom::data {
namespace {

using Json = nlohmann::ordered_json;
using test::message_of;
using ::testing::HasSubstr;

const Json kMessages =
    Json::parse(R"([{"role": "user", "content": "Zürich 天気"}, {"role": "assistant", "content": "x"}])");

std::string rendered(const std::string& text, const ChatOptions& options = {}) {
  return ChatTemplate::from_text(text, "t.jinja").render(kMessages, options);
}

// Of an expression.
std::string printed(const std::string& expression) { return rendered("{{ " + expression + " }}"); }

std::string refusal(const std::string& text, const ChatOptions& options = {}) {
  return message_of<ConfigError>([&] { rendered(text, options); });
}

TEST(ChatLanguage, CountsCharactersAndNotBytes) {
  EXPECT_EQ(printed("messages[0].content | length"), "9");
  EXPECT_EQ(printed("messages[0].content[-2:] ~ messages[0].content[::-1] ~ messages[0].content[1]"),
            "天気気天 hcirüZü");
  EXPECT_EQ(printed("messages[0].content.find('天') ~ messages[0].content.upper()"), "7ZÜRICH 天気");
}

TEST(ChatLanguage, PrintsValuesAsPythonDoes) {
  EXPECT_EQ(printed("[none, true, 1.0, 1e16, 'a\\'b', {'k': (1,)}]"),
            R"([None, True, 1.0, 1e+16, "a'b", {'k': (1,)}])");
  EXPECT_EQ(printed("{'é': [1, {}], 'n': none} | tojson"), R"({"é": [1, {}], "n": null})");
  EXPECT_EQ(printed("{'b': [1], 'a': []} | tojson(indent=2)"), "{\n  \"b\": [\n    1\n  ],\n  \"a\": []\n}");
  EXPECT_EQ(printed("-7 // 2 ~ '|' ~ -7 % 3 ~ '|' ~ 7 / 2 ~ '|' ~ 2 ** 10"), "-4|2|3.5|1024");
}

TEST(ChatLanguage, KnowsNoneFromUndefinedAndListsFromTuples) {
  EXPECT_EQ(printed("none is defined ~ missing is defined ~ (none == missing) ~ missing"), "TrueFalseFalse");
  EXPECT_EQ(printed("[1] == (1,) ~ ''"), "False");
  EXPECT_EQ(printed("('a' if false) is defined"), "False");
}

TEST(ChatLanguage, TagsTakeTheirLines) {
  EXPECT_EQ(rendered("a\n  {% if true %}\n  b\n  {%- endif +%}\nc\n"), "a\n  b\nc");
  EXPECT_EQ(rendered("{# x #}\n{{ 1 }}\n{% raw %}{{ y }}{% endraw %}"), "1\n{{ y }}");
}

TEST(ChatLanguage, LoopsKnowTheirPlace) {
  EXPECT_EQ(
      rendered("{% for m in messages %}{{ loop.index }}{{ loop.last }}{{ loop.nextitem is defined }} {% if loop.first "
               "%}{% continue %}{% endif %}{% endfor %}"),
      "1FalseTrue 2TrueFalse ");
  EXPECT_EQ(rendered("{% set ns = namespace(n=0) %}{% for i in range(9) if ns.n < 2 %}{% set ns.n = ns.n + 1 %}{{ i }}"
                     "{% endfor %}"),
            "01");
  EXPECT_EQ(rendered("{% set x = 1 %}{% for m in messages %}{% set x = x + 1 %}{% endfor %}{{ x }}"), "1");
}

TEST(ChatLanguage, MacrosTakeArgumentsAndBlocks) {
  EXPECT_EQ(rendered("{% macro f(a, b=a) %}{{ a }}{{ b }}{{ varargs }}{{ caller() }}{% endmacro %}"
                     "{% call f(1, 2, 3) %}!{% endcall %}"),
            "12(3,)!");
}

TEST(ChatLanguage, RefusesWhereAndWhat) {
  EXPECT_EQ(refusal("line\n{{ 'a' + messages[0] }}"),
            "t.jinja:2: '+' is not defined for values of type 'str' and 'dict'");
  EXPECT_EQ(refusal("{% if true %}\n\n{{ x.y }}{% endif %}"), "t.jinja:3: 'x' is not defined");
  EXPECT_EQ(refusal("\n{% if true %}"), "t.jinja:2: the template ends before {% endif %}");
  EXPECT_EQ(refusal("{{ 1 | nosuch }}"), "t.jinja:1: the filter 'nosuch' is not read in chat templates");
  EXPECT_EQ(refusal("{{ messages.append(1) }}"),
            "t.jinja:1: 'append' would change a value of type 'list'; values of templates do not change");
  EXPECT_EQ(refusal("{% include 'x' %}"),
            "t.jinja:1: the tag 'include' is not read in chat templates; write its text here");
  EXPECT_EQ(refusal("{{ '%s' % 1 }}"), "t.jinja:1: formats with % are not read; join the parts with ~");
}

// --- Hostile templates

TEST(ChatLimits, WorkIsBounded) {
  ChatOptions options;
  options.most_work = 100'000;
  const std::string nested = "{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}";
  EXPECT_EQ(refusal(nested, options), "t.jinja:1: the template does more than 100000 units of work; does it end?");
  const std::string doubling =
      "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}";
  EXPECT_THAT(refusal(doubling, options), HasSubstr("does more than 100000 units of work"));
  EXPECT_THAT(refusal("{{ 'x' * 999999999999 }}", options), HasSubstr("does more than 100000 units of work"));
  options.most_output_bytes = 1000;
  EXPECT_EQ(refusal("{% for i in range(300) %}{{ i }};{% endfor %}", options),
            "t.jinja:1: the template writes more than 1000 bytes; does it end?");
}

// Each of them took minutes or gigabytes within its work.
TEST(ChatLimits, WorkIsPaidBeforeItIsDone) {
  const std::string doubled =
      "{% set ns = namespace(s='a') %}{% for i in range(20) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}";
  const std::string loop = "{% for i in range(100000) %}";
  const std::string pairs =
      "{% set ns = namespace(d={}) %}{% for i in range(8000) %}{% set ns.d = dict(ns.d, **{'k' ~ i: i}) %}{% endfor %}";
  for (const std::string& body :
       {std::string("{{ ([1] * 10 ** 10) | length }}"), std::string("{{ ('x' * 10 ** 10) | length }}"),
        std::string("{{ 'x'.center(10 ** 10) | length }}"),
        doubled + loop + "{% if ns.s.find(ns.s[:500000] ~ 'b') > 0 %}{% endif %}{% endfor %}",
        doubled + loop + "{% if ns.s.rfind('b' ~ ns.s[:500000]) > 0 %}{% endif %}{% endfor %}",
        doubled + loop + "{% if (ns.s[:500000] ~ 'b') in ns.s %}{% endif %}{% endfor %}",
        doubled + loop + "{% if ns.s.isalpha() or ns.s is lower %}{% endif %}{% endfor %}",
        doubled + loop + "{% if ns.s | wordcount %}{% endif %}{% endfor %}",
        doubled + loop + "{% if ns.s.strip(ns.s) %}{% endif %}{% endfor %}",
        doubled + loop + "{% if ns.s | int %}{% endif %}{% endfor %}",
        doubled + "{% set t = ns.s ~ '' %}" + loop + "{% if t is sameas(ns.s) %}{% endif %}{% endfor %}",
        doubled + "{% set d = {ns.s ~ 'a': 1, ns.s ~ 'b': 2} %}" + loop +
            "{% if d[ns.s ~ 'c'] %}{% endif %}{% endfor %}",
        pairs + loop + "{% if dict(**ns.d) %}{% endif %}{% endfor %}",
        pairs + loop + "{% if namespace(ns.d) %}{% endif %}{% endfor %}",
        loop + "{% for j in range(100000) %}{% set x = namespace() %}{% endfor %}{% endfor %}",
        loop + "{% for j in range(100000) %}{% macro m() %}{% endmacro %}{% endfor %}{% endfor %}"}) {
    EXPECT_THAT(refusal(body), HasSubstr("the template does more than 50000000 units of work")) << body;
  }
}

TEST(ChatLimits, DepthIsBounded) {
  EXPECT_EQ(refusal("{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(0) }}"),
            "t.jinja:1: calls go more than 100 levels deep");
  EXPECT_EQ(refusal("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}"),
            "t.jinja:1: blocks and brackets are nested more than 80 levels deep");
  std::string sum = "{{ 1";
  for (int i = 0; i < 5000; ++i) sum += "+1";
  EXPECT_EQ(refusal(sum + " }}"), "t.jinja:1: an expression has more than 300 levels");
  EXPECT_EQ(refusal("{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}"),
            "t.jinja:1: lists and dicts are nested more than 200 levels deep");
}

TEST(ChatLimits, ATemplateIsShortUtf8) {
  EXPECT_EQ(refusal(std::string((1U << 20U) + 1, 'x')),
            "t.jinja: the template has 1048577 bytes; at most 1048576 are read");
  EXPECT_EQ(refusal("ab\xff"), "t.jinja: byte 2 is no UTF-8; save the file as UTF-8");
}

TEST(ChatLimits, ALoopIsNotAskedByItsOwnCondition) {
  EXPECT_EQ(
      refusal("{% set ns = namespace(l=none, asked=false) %}{% macro t() %}{% if ns.l and not ns.asked %}{% set "
              "ns.asked = true %}{{ ns.l.length }}{% endif %}1{% endmacro %}{% for i in [1, 2, 3] if t() %}{% set ns.l "
              "= loop %}{% endfor %}"),
      "t.jinja:1: the condition of a loop asks for what follows in that loop");
  EXPECT_EQ(rendered("{% for i in range(6) if i is even %}{{ loop.length }}{{ loop.last }} {% endfor %}"),
            "3False 3False 3True ");
}

TEST(ChatLimits, CyclesOfNamespacesAreFreed) {
  EXPECT_EQ(rendered("{% set a = namespace() %}{% set a.self = a %}{% macro m() %}{% endmacro %}{% set a.m = m %}ok"),
            "ok");
  EXPECT_THAT(refusal("{% set a = namespace() %}{% set a.self = a %}{{ a }}"), HasSubstr("200 levels deep"));
  EXPECT_EQ(
      rendered("{% set ns = namespace() %}{% for i in [7] %}{% macro m() %}{{ i }}{% endmacro %}{% set ns.m = m %}"
               "{% set ns.loop = loop %}{% endfor %}{{ ns.m() }}{{ ns.loop.index }}"),
      "71");
}

}  // namespace
}  // namespace loom::data
