#include <algorithm>
#include <array>
#include <iterator>

#include "engine/text/template/jinja/interpreter.h"

namespace loom::data::jinja {
namespace {

constexpr std::int64_t kLongestRange = 100000;  // as Jinja's sandbox has it

std::int64_t whole(const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_integer()) fail("'range' takes whole numbers, and not a value of type '{}'", type_name(value));
  return value.as_integer();
}

Value range(Interpreter& in, const Arguments& arguments) {
  const auto& given = arguments.positional;
  if (given.empty() || given.size() > 3 || !arguments.named.empty()) fail("'range' takes one to three numbers");
  const std::int64_t begin = given.size() > 1 ? whole(given[0]) : 0;
  const std::int64_t end = whole(given[given.size() > 1 ? 1 : 0]);
  const std::int64_t step = given.size() > 2 ? whole(given[2]) : 1;
  if (step == 0) fail("the step of 'range' is 0");
  std::vector<Value> items;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (std::cmp_equal(items.size(), kLongestRange)) fail("a range has {} items at most", kLongestRange);
    in.budget().values(1);
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::list(
      std::move(items), ListKind::kRange,
      step == 1 ? fmt::format("range({}, {})", begin, end) : fmt::format("range({}, {}, {})", begin, end, step));
}

Value dict(Interpreter& in, const Arguments& arguments) {
  if (arguments.positional.size() > 1) fail("'dict' takes one dict at most");
  std::vector<std::pair<Value, Value>> entries;
  const auto put = [&](const Value& key, const Value& value) {
    const auto same = [&](const auto& entry) { return are_equal(entry.first, key, in.budget()); };
    const auto known = std::ranges::find_if(entries, same);
    if (known != entries.end()) {
      known->second = value;
    } else {
      in.budget().values(2);
      entries.emplace_back(key, value);
    }
  };
  for (const Value& from : arguments.positional) {
    if (from.is_dict()) {
      entries = from.as_dict().entries;
      in.budget().values(2 * entries.size());
      continue;
    }
    for (const Value& pair : items_of(from, in.budget())) {
      const auto parts = items_of(pair, in.budget());
      if (parts.size() != 2) fail("'dict' takes pairs, and not {} values", parts.size());
      if (parts[0].is_dict() || parts[0].is_sequence_of(ListKind::kList)) {
        fail("a value of type '{}' cannot be the key of a dict", type_name(parts[0]));
      }
      put(parts[0], parts[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) put(Value(name), value);
  return Value::dict(std::move(entries));
}

Value raise_exception(Interpreter& in, const Arguments& arguments) {
  arguments.expect("raise_exception", {"message"}, 1);
  throw TemplateRefusal(str(*arguments.find(0, "message"), in.budget()));
}

Value strftime_now(Interpreter& in, const Arguments& arguments) {
  arguments.expect("strftime_now", {"format"}, 1);
  const Value& format = *arguments.find(0, "format");
  if (!format.is_text()) fail("'strftime_now' takes a text, and not a value of type '{}'", type_name(format));
  return in.formatted_time(format.as_text());
}

Value make_namespace(Interpreter& in, const Arguments& arguments) { return in.new_namespace(arguments); }

}  // namespace

const Value* find_builtin(std::string_view name) {
  static const std::array<std::pair<std::string_view, Value>, 5> builtins = {
      std::pair{std::string_view("range"), Value::function("range", range)},
      {"dict", Value::function("dict", dict)},
      {"namespace", Value::function("namespace", make_namespace)},
      {"raise_exception", Value::function("raise_exception", raise_exception)},
      {"strftime_now", Value::function("strftime_now", strftime_now)}};
  const auto* const found = std::ranges::find(builtins, name, [](const auto& each) { return each.first; });
  return found == builtins.end() ? nullptr : &found->second;
}

}  // namespace loom::data::jinja
