#include <algorithm>
#include <cmath>

#include "engine/core/shown_text.h"
#include "engine/text/template/jinja/filters.h"
#include "engine/text/template/jinja/interpreter.h"
#include "engine/text/template/jinja/methods.h"
#include "engine/text/template/jinja/operators.h"
#include "engine/text/template/jinja/text.h"

namespace loom::data::jinja {
namespace {

using In = Interpreter;

template <Kind Of>
bool is_kind(In&, const Value& value, const Arguments& arguments) {
  arguments.expect("this test", {});
  return value.is(Of);
}

bool defined(In&, const Value& value, const Arguments& arguments) {
  arguments.expect("defined", {});
  return !value.is_undefined();
}

template <bool Is>
bool boolean_is(In&, const Value& value, const Arguments& arguments) {
  arguments.expect("true, false", {});
  return value.is(Kind::kBool) && value.as_bool() == Is;
}

bool number(In&, const Value& value, const Arguments& arguments) {
  arguments.expect("number", {});
  return value.is_number();
}

bool sequence(In&, const Value& value, const Arguments& arguments) {
  arguments.expect("sequence", {});
  const bool items =
      value.is_list() && !value.is_sequence_of(ListKind::kIterator) && !value.is_sequence_of(ListKind::kView);
  return items || value.is_text() || value.is_dict() || value.is_undefined();
}

bool iterable(In&, const Value& value, const Arguments& arguments) {
  arguments.expect("iterable", {});
  return value.is_list() || value.is_text() || value.is_dict() || value.is_undefined() || value.is(Kind::kLoop);
}

bool escaped_text(In&, const Value& value, const Arguments& arguments) {
  arguments.expect("escaped", {});
  return value.is_safe_text();
}

bool lower_case(In& in, const Value& value, const Arguments& arguments) {
  arguments.expect("lower", {});
  return all_cased(str(value, in.budget()), is_lower, in.budget());
}
bool upper_case(In& in, const Value& value, const Arguments& arguments) {
  arguments.expect("upper", {});
  return all_cased(str(value, in.budget()), is_upper, in.budget());
}

std::int64_t remainder(In& in, const Value& value, const Value& by) {
  const Value rest = binary("%", value, by, in.budget());
  return rest.is_integer() ? rest.as_integer() : (rest.as_float() == 0 ? 0 : (rest.as_float() == 1 ? 1 : 2));
}
bool even(In& in, const Value& value, const Arguments& arguments) {
  arguments.expect("even", {});
  return remainder(in, value, std::int64_t{2}) == 0;
}
bool odd(In& in, const Value& value, const Arguments& arguments) {
  arguments.expect("odd", {});
  return remainder(in, value, std::int64_t{2}) == 1;
}
bool divisible(In& in, const Value& value, const Arguments& arguments) {
  arguments.expect("divisibleby", {"num"}, 1);
  return remainder(in, value, *arguments.find(0, "num")) == 0;
}

// Operators by names; the name is not known to a test, so each has its own.
template <char First, char Second>
bool compares(In& in, const Value& value, const Arguments& arguments) {
  arguments.expect("this test", {"other"}, 1);
  constexpr char kText[] = {First, Second};
  return compare(std::string_view(kText, Second == '\0' ? 1 : 2), value, *arguments.find(0, "other"), in.budget());
}

bool in_container(In& in, const Value& value, const Arguments& arguments) {
  arguments.expect("in", {"seq"}, 1);
  return contains(*arguments.find(0, "seq"), value, in.budget());
}

bool same_as(In& in, const Value& value, const Arguments& arguments) {
  arguments.expect("sameas", {"other"}, 1);
  if (value.is_text()) in.budget().text(value.as_text().size());
  return value.is_same_as(*arguments.find(0, "other"));
}

bool callable(In&, const Value& value, const Arguments& arguments) {
  arguments.expect("callable", {});
  return value.is(Kind::kFunction);
}

struct NamedTest {
  std::string_view name;
  Test test;
};
constexpr NamedTest kTests[] = {
    {"!=", compares<'!', '='>},
    {"<", compares<'<', '\0'>},
    {"<=", compares<'<', '='>},
    {"==", compares<'=', '='>},
    {">", compares<'>', '\0'>},
    {">=", compares<'>', '='>},
    {"boolean", is_kind<Kind::kBool>},
    {"callable", callable},
    {"defined", defined},
    {"divisibleby", divisible},
    {"eq", compares<'=', '='>},
    {"equalto", compares<'=', '='>},
    {"escaped", escaped_text},
    {"even", even},
    {"false", boolean_is<false>},
    {"float", is_kind<Kind::kFloat>},
    {"ge", compares<'>', '='>},
    {"greaterthan", compares<'>', '\0'>},
    {"gt", compares<'>', '\0'>},
    {"in", in_container},
    {"integer", is_kind<Kind::kInteger>},
    {"iterable", iterable},
    {"le", compares<'<', '='>},
    {"lessthan", compares<'<', '\0'>},
    {"lower", lower_case},
    {"lt", compares<'<', '\0'>},
    {"mapping", is_kind<Kind::kDict>},
    {"ne", compares<'!', '='>},
    {"none", is_kind<Kind::kNone>},
    {"number", number},
    {"odd", odd},
    {"sameas", same_as},
    {"sequence", sequence},
    {"string", is_kind<Kind::kText>},
    {"true", boolean_is<true>},
    {"undefined", is_kind<Kind::kUndefined>},
    {"upper", upper_case},
};

}  // namespace

Test find_test(std::string_view name) {
  const auto* const found = std::ranges::find(kTests, name, &NamedTest::name);
  if (found == std::end(kTests)) fail("the test '{}' is not read in chat templates", shown_text(name));
  return found->test;
}

}  // namespace loom::data::jinja
