#include "engine/text/template/jinja/operators.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/core/shown_text.h"
#include "engine/text/template/jinja/loop.h"
#include "engine/text/template/jinja/methods.h"
#include "engine/text/template/jinja/text.h"

namespace loom::data::jinja {
namespace {

[[noreturn]] void fail_types(std::string_view op, const Value& a, const Value& b) {
  if (a.is_undefined()) fail_undefined(a);
  if (b.is_undefined()) fail_undefined(b);
  fail("'{}' is not defined for values of type '{}' and '{}'", op, type_name(a), type_name(b));
}

[[noreturn]] void fail_overflow() { fail("a whole number leaves 64 bits"); }

std::int64_t sum(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) fail_overflow();
  return result;
}

std::int64_t difference(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (__builtin_sub_overflow(a, b, &result)) fail_overflow();
  return result;
}

std::int64_t product(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) fail_overflow();
  return result;
}

std::int64_t floor_quotient(std::int64_t a, std::int64_t b) {
  if (b == -1) return difference(0, a);
  const std::int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

std::int64_t power(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) result = product(result, base);
    if (exponent > 1) base = product(base, base);
  }
  return result;
}

Value integer_result(std::string_view op, std::int64_t a, std::int64_t b) {
  if (op == "+") return sum(a, b);
  if (op == "-") return difference(a, b);
  if (op == "*") return product(a, b);
  if (op == "**") {
    if (a == 0 && b < 0) fail("a number is divided by zero");
    return b < 0 ? Value(std::pow(static_cast<double>(a), static_cast<double>(b))) : power(a, b);
  }
  if (b == 0) fail("a number is divided by zero");
  if (op == "/") return static_cast<double>(a) / static_cast<double>(b);
  if (op == "//") return floor_quotient(a, b);
  return b == -1 ? std::int64_t{0} : a - floor_quotient(a, b) * b;
}

Value float_result(std::string_view op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "**") {
    if (a < 0 && std::floor(b) != b) fail("a negative number has no such power");
    return std::pow(a, b);
  }
  if (b == 0) fail("a number is divided by zero");
  if (op == "/") return a / b;
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (op == "%") return rest == 0 ? std::copysign(0.0, b) : rest;
  return std::floor((a - rest) / b + 0.5);
}

Value add_texts(const Value& a, const Value& b, Budget& budget) {
  const bool safe = a.is_safe_text() || b.is_safe_text();
  const auto part = [&](const Value& text) {
    return safe && !text.is_safe_text() ? html_escaped(text.as_text(), budget) : text.as_text();
  };
  budget.text(a.as_text().size() + b.as_text().size());
  return {part(a) + part(b), safe};
}

Value add_lists(const List& a, const List& b, Budget& budget) {
  budget.values(a.items.size() + b.items.size());
  std::vector<Value> items;
  items.reserve(a.items.size() + b.items.size());
  items.insert(items.end(), a.items.begin(), a.items.end());
  items.insert(items.end(), b.items.begin(), b.items.end());
  return Value::list(std::move(items), a.kind);
}

bool is_plain_sequence(const Value& value) {
  return value.is_sequence_of(ListKind::kList) || value.is_sequence_of(ListKind::kTuple);
}

Value repeated(const Value& value, std::int64_t times, Budget& budget) {
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(times, 0));
  if (value.is_text()) {
    Builder text(budget);
    if (!value.as_text().empty()) text.repeat(value.as_text(), count);
    return {text.take(), value.is_safe_text()};
  }
  const List& list = value.as_list();
  std::vector<Value> items;
  budget.work(count, kWorkPerValue * list.items.size());
  items.reserve(count * list.items.size());
  for (std::size_t i = 0; i < count && !list.items.empty(); ++i) {
    items.insert(items.end(), list.items.begin(), list.items.end());
  }
  return Value::list(std::move(items), list.kind);
}

// Begin, end and step of a slice of `size` items, as Python's slice.indices().
struct Range {
  std::int64_t begin, end, step;
};

std::int64_t slice_part(const Value& value, std::string_view which) {
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_integer()) fail("the {} of a slice is of type '{}'; use a whole number", which, type_name(value));
  return value.as_integer();
}

Range range_of(const Value& begin, const Value& end, const Value& step, std::int64_t size) {
  Range range{.begin = 0, .end = 0, .step = step.is_none() ? 1 : slice_part(step, "step")};
  if (range.step == 0) fail("the step of a slice is 0");
  const bool back = range.step < 0;
  const std::int64_t least = back ? -1 : 0;
  const std::int64_t most = back ? size - 1 : size;
  const auto place = [&](const Value& value, std::string_view which, std::int64_t otherwise) {
    if (value.is_none()) return otherwise;
    const std::int64_t at = slice_part(value, which);
    return at < 0 ? std::max(at < -size ? least : at + size, least) : std::min(at, most);
  };
  range.begin = place(begin, "begin", back ? most : least);
  range.end = place(end, "end", back ? least : most);
  return range;
}

// Calls write(index) for each.
template <class Write>
void for_each_index(const Range& range, Write&& write) {
  for (std::int64_t i = range.begin; range.step > 0 ? i < range.end : i > range.end;) {
    write(static_cast<std::size_t>(i));
    if (__builtin_add_overflow(i, range.step, &i)) return;
  }
}

Value text_slice(const Value& value, const Value& begin, const Value& end, const Value& step, Budget& budget) {
  const std::string& text = value.as_text();
  budget.work(1 + text.size() / 4);
  const Range range = range_of(begin, end, step, static_cast<std::int64_t>(character_count(text)));
  if (range.step == 1) {
    if (range.begin >= range.end) return Value(std::string());
    const std::size_t from = offset_of(text, static_cast<std::size_t>(range.begin));
    const std::size_t length =
        offset_of(std::string_view(text).substr(from), static_cast<std::size_t>(range.end - range.begin));
    return text.substr(from, length);
  }
  std::vector<std::string_view> characters;
  budget.values(text.size());
  for_each_character(text, [&](std::string_view character) { characters.push_back(character); });
  std::string result;
  for_each_index(range, [&](std::size_t i) { result += characters[i]; });
  return result;
}

Value at_index(const Value& value, const Value& index, Budget& budget) {
  const auto missing = [&] {
    return Value::undefined(fmt::format("a value of type '{}' has no item {}", type_name(value), index.as_integer()));
  };
  const auto size = static_cast<std::int64_t>(length_of(value, budget));
  std::int64_t at = index.as_integer();
  if (at < 0) at += size;
  if (at < 0 || at >= size) return missing();
  if (value.is_list()) return value.as_list().items[static_cast<std::size_t>(at)];
  const std::string_view rest =
      std::string_view(value.as_text()).substr(offset_of(value.as_text(), static_cast<std::size_t>(at)));
  return rest.substr(0, offset_of(rest, 1));
}

const Value* find_key(const Dict& dict, const Value& key, Budget& budget) {
  if (key.is_text()) return dict.find(key.as_text(), budget);
  for (const auto& [name, value] : dict.entries) {
    if (are_equal(name, key, budget)) return &value;
  }
  return nullptr;
}

Value loop_attribute(Loop& loop, std::string_view name) {
  const auto length = [&] { return static_cast<std::int64_t>(loop.length()); };
  if (name == "index") return loop.index;
  if (name == "index0") return loop.index - 1;
  if (name == "first") return loop.index == 1;
  if (name == "last") return !loop.has_next();
  if (name == "length") return length();
  if (name == "revindex") return length() - loop.index + 1;
  if (name == "revindex0") return length() - loop.index;
  if (name == "depth") return std::int64_t{loop.level};
  if (name == "depth0") return std::int64_t{loop.level} - 1;
  if (name == "previtem") return loop.previous;
  if (name == "nextitem") return loop.has_next() ? loop.items[loop.at] : Value::undefined("there is no next item");
  if (name == "cycle") {
    const std::int64_t at = loop.index - 1;
    return Value::function("loop.cycle", [at](Interpreter&, const Arguments& arguments) {
      if (arguments.positional.empty()) fail("'loop.cycle' lacks its values");
      return arguments.positional[static_cast<std::size_t>(at) % arguments.positional.size()];
    });
  }
  if (name == "changed") fail("'loop.changed' is not read; compare with loop.previtem");
  return Value::undefined(fmt::format("'loop' has no attribute '{}'", shown_text(name)));
}

Value missing_attribute(const Value& value, std::string_view name) {
  return Value::undefined(
      fmt::format("a value of type '{}' has no attribute or key '{}'", type_name(value), shown_text(name)));
}

}  // namespace

std::string html_escaped(std::string_view text, Budget& budget) {
  Builder escaped(budget);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_of("&<>\"'", at), text.size());
    escaped += text.substr(at, end - at);
    if (end == text.size()) break;
    switch (text[end]) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&#34;";
        break;
      default:
        escaped += "&#39;";
    }
    at = end + 1;
  }
  return escaped.take();
}

Value binary(std::string_view op, const Value& a, const Value& b, Budget& budget) {
  if (a.is_integer() && b.is_integer()) return integer_result(op, a.as_integer(), b.as_integer());
  if (a.is_number() && b.is_number()) return float_result(op, a.as_float(), b.as_float());
  if (op == "+" && a.is_text() && b.is_text()) return add_texts(a, b, budget);
  if (op == "+" && is_plain_sequence(a) && is_plain_sequence(b) && a.as_list().kind == b.as_list().kind) {
    return add_lists(a.as_list(), b.as_list(), budget);
  }
  if (op == "*" && b.is_integer() && (a.is_text() || is_plain_sequence(a))) return repeated(a, b.as_integer(), budget);
  if (op == "*" && a.is_integer() && (b.is_text() || is_plain_sequence(b))) return repeated(b, a.as_integer(), budget);
  if (op == "%" && a.is_text()) fail("formats with % are not read; join the parts with ~");
  fail_types(op, a, b);
}

Value negative(const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
  if (value.is_integer()) return integer_result("-", 0, value.as_integer());
  if (value.is_number()) return -value.as_float();
  fail("a value of type '{}' has no negative", type_name(value));
}

Value positive(const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
  if (value.is_integer()) return value.as_integer();
  if (value.is_number()) return value;
  fail("'+' is not defined for a value of type '{}'", type_name(value));
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  if (container.is_text()) {
    if (!item.is_text()) {
      if (item.is_undefined()) fail_undefined(item);
      fail("'in' a text looks for a text, and not for a value of type '{}'", type_name(item));
    }
    budget.text(container.as_text().size() + item.as_text().size());
    return find_first(container.as_text(), item.as_text()) != std::string::npos;
  }
  if (container.is_dict()) return find_key(container.as_dict(), item, budget) != nullptr;
  const bool walkable = container.is_list() || container.is_undefined();
  if (!walkable) fail("'in' is not defined for a value of type '{}'", type_name(container));
  const auto items = items_of(container, budget);
  return std::ranges::any_of(items, [&](const Value& each) { return are_equal(each, item, budget); });
}

bool compare(std::string_view op, const Value& a, const Value& b, Budget& budget) {
  if (op == "==") return are_equal(a, b, budget);
  if (op == "!=") return !are_equal(a, b, budget);
  if (op == "in") return contains(b, a, budget);
  if (op == "not in") return !contains(b, a, budget);
  const bool is_nan =
      (a.is(Kind::kFloat) && std::isnan(a.as_float())) || (b.is(Kind::kFloat) && std::isnan(b.as_float()));
  if (is_nan && a.is_number() && b.is_number()) return false;
  if (op == "<") return is_less(a, b, budget);
  if (op == ">") return is_less(b, a, budget);
  if (op == "<=") return !is_less(b, a, budget);
  return !is_less(a, b, budget);
}

Value slice(const Value& value, const Value& begin, const Value& end, const Value& step, Budget& budget) {
  if (value.is_undefined()) fail_undefined(value);
  if (value.is_text()) return text_slice(value, begin, end, step, budget);
  if (!is_plain_sequence(value) && !value.is_sequence_of(ListKind::kRange)) {
    fail("a value of type '{}' has no slices", type_name(value));
  }
  const List& list = value.as_list();
  std::vector<Value> items;
  const Range range = range_of(begin, end, step, static_cast<std::int64_t>(list.items.size()));
  for_each_index(range, [&](std::size_t i) {
    budget.values(1);
    items.push_back(list.items[i]);
  });
  return Value::list(std::move(items), list.kind);
}

Value item(const Value& value, const Value& index, Budget& budget) {
  if (value.is_undefined()) fail_undefined(value);
  if (value.is_dict()) {
    if (const Value* found = find_key(value.as_dict(), index, budget)) return *found;
  }
  const bool indexed = value.is_text() || is_plain_sequence(value) || value.is_sequence_of(ListKind::kRange);
  if (indexed && index.is_integer()) return at_index(value, index, budget);
  if (index.is_text()) {
    if (auto method = find_method(value, index.as_text())) return *method;
    if (value.is(Kind::kNamespace) || value.is(Kind::kLoop)) return attribute(value, index.as_text(), budget);
    return missing_attribute(value, index.as_text());
  }
  return Value::undefined(
      fmt::format("a value of type '{}' has no item of type '{}'", type_name(value), type_name(index)));
}

Value attribute(const Value& value, std::string_view name, Budget& budget) {
  if (value.is_undefined()) fail_undefined(value);
  if (value.is(Kind::kLoop)) return loop_attribute(value.as_loop(), name);
  if (value.is(Kind::kNamespace)) {
    const Value* found = value.as_namespace().find(name, budget);
    return found != nullptr ? *found : missing_attribute(value, name);
  }
  if (auto method = find_method(value, name)) return *method;
  if (value.is_dict()) {
    if (const Value* found = find_key(value.as_dict(), Value(name), budget)) return *found;
  }
  return missing_attribute(value, name);
}

}  // namespace loom::data::jinja
