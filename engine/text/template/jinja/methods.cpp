#include "engine/text/template/jinja/methods.h"

#include <algorithm>
#include <array>
#include <limits>

#include "engine/core/shown_text.h"
#include "engine/text/template/jinja/interpreter.h"
#include "engine/text/template/jinja/text.h"
#include "engine/text/tokenizer/utf8.h"

namespace loom::data::jinja {
namespace {

using Method = Value (*)(const Value& self, const Arguments& arguments, Budget& budget);
struct NamedMethod {
  std::string_view name;
  Method call;
};

// --- arguments ---

const std::string& text_of(const Value& value, std::string_view who) {
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_text()) fail("'{}' takes a text, and not a value of type '{}'", who, type_name(value));
  return value.as_text();
}

std::int64_t integer_of(const Value& value, std::string_view who) {
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_integer()) fail("'{}' takes a whole number, and not a value of type '{}'", who, type_name(value));
  return value.as_integer();
}

// A text, or nothing where it is absent or none.
std::optional<std::string_view> optional_text(const Arguments& arguments, std::size_t place, std::string_view name,
                                              std::string_view who) {
  const Value* value = arguments.find(place, name);
  if (value == nullptr || value->is_none()) return std::nullopt;
  return text_of(*value, who);
}

// A count; what is negative has no end.
std::size_t count_of(const Arguments& arguments, std::size_t place, std::string_view name, std::string_view who) {
  const Value* value = arguments.find(place, name);
  const std::int64_t count = value == nullptr ? -1 : integer_of(*value, who);
  return count < 0 ? std::numeric_limits<std::size_t>::max() : static_cast<std::size_t>(count);
}

Value list_of(const std::vector<std::string_view>& parts, Budget& budget) {
  std::vector<Value> items;
  for (const auto part : parts) {
    budget.objects(1);
    budget.text(part.size());
    items.emplace_back(part);
  }
  return Value::list(std::move(items));
}

// Part [begin, end) of a text, places counted in characters, as for str.find() and the like.
std::string_view window(const std::string& text, const Arguments& arguments, std::size_t place, std::string_view who,
                        std::size_t* begin_at) {
  const auto size = static_cast<std::int64_t>(character_count(text));
  const auto at = [&](std::size_t i, std::string_view name, std::int64_t otherwise) {
    const Value* value = arguments.find(i, name);
    if (value == nullptr || value->is_none()) return otherwise;
    const std::int64_t given = integer_of(*value, who);
    return given < 0 ? std::max<std::int64_t>(given < -size ? 0 : given + size, 0) : given;
  };
  const std::int64_t begin = at(place, "start", 0);
  const std::int64_t end = std::min(at(place + 1, "end", size), size);
  *begin_at = static_cast<std::size_t>(std::min(begin, size + 1));
  if (begin > size || begin > end) return {nullptr, 0};
  const std::size_t from = offset_of(text, static_cast<std::size_t>(begin));
  return std::string_view(text).substr(
      from, offset_of(std::string_view(text).substr(from), static_cast<std::size_t>(end - begin)));
}

// --- methods of texts ---

Value stripped(const Value& self, const Arguments& arguments, std::string_view who, bool left, bool right,
               Budget& budget) {
  arguments.expect(who, {"chars"});
  const auto characters = optional_text(arguments, 0, "chars", who);
  std::string_view text = self.as_text();
  if (left) text = characters ? strip_left(text, *characters, budget) : strip_left(text);
  if (right) text = characters ? strip_right(text, *characters, budget) : strip_right(text);
  return {std::string(text), self.is_safe_text()};
}

Value strip(const Value& self, const Arguments& arguments, Budget& budget) {
  return stripped(self, arguments, "strip", true, true, budget);
}
Value lstrip(const Value& self, const Arguments& arguments, Budget& budget) {
  return stripped(self, arguments, "lstrip", true, false, budget);
}
Value rstrip(const Value& self, const Arguments& arguments, Budget& budget) {
  return stripped(self, arguments, "rstrip", false, true, budget);
}

std::optional<std::string_view> separator_of(const Arguments& arguments, std::string_view who, Budget& budget) {
  arguments.expect(who, {"sep", "maxsplit"});
  const auto separator = optional_text(arguments, 0, "sep", who);
  if (separator && separator->empty()) fail("'{}' is given an empty separator", who);
  if (separator) budget.text(separator->size());
  return separator;
}

Value split_left(const Value& self, const Arguments& arguments, Budget& budget) {
  const auto separator = separator_of(arguments, "split", budget);
  return list_of(split(self.as_text(), separator, count_of(arguments, 1, "maxsplit", "split"), budget), budget);
}

Value split_right(const Value& self, const Arguments& arguments, Budget& budget) {
  const auto separator = separator_of(arguments, "rsplit", budget);
  return list_of(split_from_right(self.as_text(), separator, count_of(arguments, 1, "maxsplit", "rsplit"), budget),
                 budget);
}

Value lines(const Value& self, const Arguments& arguments, Budget& budget) {
  arguments.expect("splitlines", {"keepends"});
  const Value* keep = arguments.find(0, "keepends");
  return list_of(split_lines(self.as_text(), keep != nullptr && is_true(*keep), budget), budget);
}

template <class Fits>
Value any_affix(const Value& self, const Arguments& arguments, std::string_view who, Budget& budget, Fits&& fits) {
  arguments.expect(who, {"prefix", "start", "end"}, 1);
  std::size_t begin = 0;
  const std::string_view text = window(self.as_text(), arguments, 1, who, &begin);
  if (text.data() == nullptr) return false;
  const Value& affix = arguments.positional.empty() ? *arguments.find(0, "prefix") : arguments.positional[0];
  const auto is_one = [&](const Value& each) {
    budget.text(std::min(text.size(), text_of(each, who).size()));
    return static_cast<bool>(fits(text, text_of(each, who)));
  };
  return affix.is_sequence_of(ListKind::kTuple) ? std::ranges::any_of(affix.as_list().items, is_one) : is_one(affix);
}

Value starts_with(const Value& self, const Arguments& arguments, Budget& budget) {
  return any_affix(self, arguments, "startswith", budget,
                   [](std::string_view text, std::string_view affix) { return text.starts_with(affix); });
}
Value ends_with(const Value& self, const Arguments& arguments, Budget& budget) {
  return any_affix(self, arguments, "endswith", budget,
                   [](std::string_view text, std::string_view affix) { return text.ends_with(affix); });
}

Value replace(const Value& self, const Arguments& arguments, Budget& budget) {
  arguments.expect("replace", {"old", "new", "count"}, 2);
  if (self.is_safe_text()) fail("'replace' of a text marked safe is not read; replace first");
  return replaced(self.as_text(), text_of(*arguments.find(0, "old"), "replace"),
                  text_of(*arguments.find(1, "new"), "replace"), count_of(arguments, 2, "count", "replace"), budget);
}

Value remove_affix(const Value& self, const Arguments& arguments, Budget&) {
  arguments.expect("removeprefix", {"prefix"}, 1);
  std::string_view text = self.as_text();
  const std::string& prefix = text_of(*arguments.find(0, "prefix"), "removeprefix");
  if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
  return text;
}

Value remove_suffix(const Value& self, const Arguments& arguments, Budget&) {
  arguments.expect("removesuffix", {"suffix"}, 1);
  std::string_view text = self.as_text();
  const std::string& suffix = text_of(*arguments.find(0, "suffix"), "removesuffix");
  if (text.ends_with(suffix)) text.remove_suffix(suffix.size());
  return text;
}

template <std::string (*Change)(std::string_view)>
Value changed(const Value& self, const Arguments& arguments, Budget& budget) {
  arguments.expect("upper, lower, title, capitalize", {});
  budget.characters(self.as_text().size());
  return {Change(self.as_text()), self.is_safe_text()};
}

Value find_from(const Value& self, const Arguments& arguments, std::string_view who, bool right, Budget& budget) {
  arguments.expect(who, {"sub", "start", "end"}, 1);
  const std::string& part = text_of(*arguments.find(0, "sub"), who);
  budget.text(part.size());
  std::size_t begin = 0;
  const std::string_view text = window(self.as_text(), arguments, 1, who, &begin);
  if (text.data() == nullptr) return std::int64_t{-1};
  const std::size_t at = right ? find_last(text, part) : find_first(text, part);
  if (at == std::string_view::npos) return std::int64_t{-1};
  return static_cast<std::int64_t>(begin + character_count(text.substr(0, at)));
}

Value find_text(const Value& self, const Arguments& arguments, Budget& budget) {
  return find_from(self, arguments, "find", false, budget);
}
Value rfind_text(const Value& self, const Arguments& arguments, Budget& budget) {
  return find_from(self, arguments, "rfind", true, budget);
}

Value found_or_refused(Value found, std::string_view who) {
  if (found.as_integer() < 0) fail("'{}' does not find its text", who);
  return found;
}
Value index_text(const Value& self, const Arguments& arguments, Budget& budget) {
  return found_or_refused(find_from(self, arguments, "index", false, budget), "index");
}
Value rindex_text(const Value& self, const Arguments& arguments, Budget& budget) {
  return found_or_refused(find_from(self, arguments, "rindex", true, budget), "rindex");
}

Value count_text(const Value& self, const Arguments& arguments, Budget& budget) {
  arguments.expect("count", {"sub", "start", "end"}, 1);
  const std::string& part = text_of(*arguments.find(0, "sub"), "count");
  budget.text(part.size());
  std::size_t begin = 0;
  const std::string_view text = window(self.as_text(), arguments, 1, "count", &begin);
  if (text.data() == nullptr) return std::int64_t{0};
  if (part.empty()) return static_cast<std::int64_t>(character_count(text)) + 1;
  std::int64_t count = 0;
  for (std::size_t at = find_first(text, part); at != std::string_view::npos;
       at = find_first(text, part, at + part.size())) {
    ++count;
  }
  return count;
}

Value join(const Value& self, const Arguments& arguments, Budget& budget) {
  arguments.expect("join", {"iterable"}, 1);
  Builder joined(budget);
  bool first = true;
  for (const Value& each : items_of(*arguments.find(0, "iterable"), budget)) {
    if (!first) joined += self.as_text();
    joined += text_of(each, "join");
    first = false;
  }
  return joined.take();
}

// Whether `Is` holds for every character of a text that is not empty.
template <bool (*Is)(char32_t)>
Value every(const Value& self, const Arguments& arguments, Budget& budget) {
  arguments.expect("isdigit, isalpha, isalnum, isspace", {});
  const std::string& text = self.as_text();
  budget.characters(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    if (!Is(character.code)) return false;
    at += character.bytes;
  }
  return !text.empty();
}

bool is_alphanumeric(char32_t code) { return is_alpha(code) || is_numeric(code); }

// Cased characters are there, and all of one case.
template <bool (*Is)(char32_t)>
Value every_cased(const Value& self, const Arguments& arguments, Budget& budget) {
  arguments.expect("isupper, islower", {});
  return all_cased(self.as_text(), Is, budget);
}

Value partition(const Value& self, const Arguments& arguments, std::string_view who, bool right, Budget& budget) {
  arguments.expect(who, {"sep"}, 1);
  const std::string_view text = self.as_text();
  const std::string& separator = text_of(*arguments.find(0, "sep"), who);
  if (separator.empty()) fail("'{}' is given an empty separator", who);
  budget.text(separator.size());
  const std::size_t at = right ? find_last(text, separator) : find_first(text, separator);
  std::vector<Value> parts;
  if (at == std::string_view::npos) {
    parts = right ? std::vector<Value>{"", "", self} : std::vector<Value>{self, "", ""};
  } else {
    parts = {text.substr(0, at), separator, text.substr(at + separator.size())};
  }
  return Value::list(std::move(parts), ListKind::kTuple);
}

Value partition_left(const Value& self, const Arguments& arguments, Budget& budget) {
  return partition(self, arguments, "partition", false, budget);
}
Value partition_right(const Value& self, const Arguments& arguments, Budget& budget) {
  return partition(self, arguments, "rpartition", true, budget);
}

// Fills a text up to a width; of the missing characters `left` of `of` go to the left.
Value padded(const Value& self, const Arguments& arguments, std::string_view who, int left, int of, Budget& budget) {
  arguments.expect(who, {"width", "fillchar"}, 1);
  const std::int64_t width = integer_of(*arguments.find(0, "width"), who);
  const Value* fill = arguments.find(1, "fillchar");
  const std::string_view with = fill == nullptr ? " " : std::string_view(text_of(*fill, who));
  budget.text(with.size());
  if (character_count(with) != 1) fail("'{}' fills with one character", who);
  const auto size = static_cast<std::int64_t>(character_count(self.as_text()));
  const std::int64_t missing = std::max<std::int64_t>(width - size, 0);
  // str.center() of Python gives the odd one to the left only where the width is odd.
  const std::int64_t before = of == 2 ? missing / 2 + (missing & width & 1) : missing * left;
  Builder text(budget);
  text.repeat(with, static_cast<std::size_t>(before));
  text += self.as_text();
  text.repeat(with, static_cast<std::size_t>(missing - before));
  return text.take();
}

Value left_justified(const Value& self, const Arguments& arguments, Budget& budget) {
  return padded(self, arguments, "ljust", 0, 1, budget);
}
Value right_justified(const Value& self, const Arguments& arguments, Budget& budget) {
  return padded(self, arguments, "rjust", 1, 1, budget);
}
Value centered(const Value& self, const Arguments& arguments, Budget& budget) {
  return padded(self, arguments, "center", 1, 2, budget);
}

constexpr NamedMethod kTextMethods[] = {
    {"strip", strip},
    {"lstrip", lstrip},
    {"rstrip", rstrip},
    {"split", split_left},
    {"rsplit", split_right},
    {"splitlines", lines},
    {"startswith", starts_with},
    {"endswith", ends_with},
    {"replace", replace},
    {"removeprefix", remove_affix},
    {"removesuffix", remove_suffix},
    {"upper", changed<upper>},
    {"lower", changed<lower>},
    {"title", changed<title>},
    {"capitalize", changed<capitalize>},
    {"find", find_text},
    {"rfind", rfind_text},
    {"index", index_text},
    {"rindex", rindex_text},
    {"count", count_text},
    {"join", join},
    {"isdigit", every<is_decimal>},
    {"isalpha", every<is_alpha>},
    {"isalnum", every<is_alphanumeric>},
    {"isspace", every<is_space>},
    {"isupper", every_cased<is_upper>},
    {"islower", every_cased<is_lower>},
    {"partition", partition_left},
    {"rpartition", partition_right},
    {"ljust", left_justified},
    {"rjust", right_justified},
    {"center", centered},
};
constexpr std::string_view kOtherTextMethods[] = {"casefold", "encode",    "expandtabs",   "format",    "format_map",
                                                  "isascii",  "isdecimal", "isidentifier", "isnumeric", "isprintable",
                                                  "istitle",  "maketrans", "swapcase",     "translate", "zfill"};

// --- methods of dicts and lists ---

template <class Take>
Value view_of(const Value& self, const Arguments& arguments, std::string_view who, Budget& budget, Take&& take) {
  arguments.expect(who, {});
  std::vector<Value> items;
  budget.objects(self.as_dict().entries.size());
  for (const auto& entry : self.as_dict().entries) items.push_back(take(entry));
  return Value::list(std::move(items), ListKind::kView, fmt::format("dict_{}", who));
}

Value keys(const Value& self, const Arguments& arguments, Budget& budget) {
  return view_of(self, arguments, "keys", budget, [](const auto& entry) { return entry.first; });
}
Value values(const Value& self, const Arguments& arguments, Budget& budget) {
  return view_of(self, arguments, "values", budget, [](const auto& entry) { return entry.second; });
}
Value items(const Value& self, const Arguments& arguments, Budget& budget) {
  return view_of(self, arguments, "items", budget, [&](const auto& entry) {
    budget.objects(1);
    return Value::list({entry.first, entry.second}, ListKind::kTuple);
  });
}

Value get(const Value& self, const Arguments& arguments, Budget& budget) {
  arguments.expect("get", {"key", "default"}, 1);
  const Value& key = *arguments.find(0, "key");
  for (const auto& [name, value] : self.as_dict().entries) {
    if (are_equal(name, key, budget)) return value;
  }
  const Value* otherwise = arguments.find(1, "default");
  return otherwise == nullptr ? Value::none() : *otherwise;
}

Value copy(const Value& self, const Arguments& arguments, Budget&) {
  arguments.expect("copy", {});
  return self;
}

Value index_of(const Value& self, const Arguments& arguments, Budget& budget) {
  arguments.expect("index", {"value"}, 1);
  const auto& all = self.as_list().items;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (are_equal(all[i], *arguments.find(0, "value"), budget)) return static_cast<std::int64_t>(i);
  }
  fail("'index' does not find its value");
}

Value count_of_item(const Value& self, const Arguments& arguments, Budget& budget) {
  arguments.expect("count", {"value"}, 1);
  const auto same = [&](const Value& each) { return are_equal(each, *arguments.find(0, "value"), budget); };
  return static_cast<std::int64_t>(std::ranges::count_if(self.as_list().items, same));
}

constexpr NamedMethod kDictMethods[] = {
    {"keys", keys}, {"values", values}, {"items", items}, {"get", get}, {"copy", copy}};
constexpr std::string_view kDictChanges[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr NamedMethod kListMethods[] = {{"index", index_of}, {"count", count_of_item}, {"copy", copy}};
constexpr std::string_view kListChanges[] = {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"};
constexpr std::string_view kNumberAttributes[] = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator", "from_bytes", "fromhex", "hex", "imag",
    "is_integer",       "numerator", "real",       "to_bytes"};

template <class Names>
bool has(const Names& names, std::string_view name) {
  return std::ranges::find(names, name) != std::end(names);
}

template <class Methods>
std::optional<Value> bound(const Methods& methods, const Value& self, std::string_view name) {
  const auto* const found = std::ranges::find(methods, name, &NamedMethod::name);
  if (found == std::end(methods)) return std::nullopt;
  return Value::function(
      std::string(name),
      [self, call = found->call](Interpreter& interpreter, const Arguments& arguments) {
        if (self.is_text()) interpreter.budget().text(self.as_text().size());
        return call(self, arguments, interpreter.budget());
      },
      self.depth());
}

Value change(const Value& value, std::string_view name) {
  return Value::undefined(
      fmt::format("'{}' would change a value of type '{}'; values of templates do not change", name, type_name(value)));
}

[[noreturn]] void fail_unread(const Value& value, std::string_view name) {
  fail("the attribute '{}' of a value of type '{}' is not read in chat templates", name, type_name(value));
}

}  // namespace

std::string replaced(std::string_view text, std::string_view from, std::string_view to, std::size_t most,
                     Budget& budget) {
  Builder result(budget);
  if (from.empty()) {
    std::size_t done = 0;
    for_each_character(text, [&](std::string_view character) {
      if (done++ < most) result += to;
      result += character;
    });
    if (done < most) result += to;
    return result.take();
  }
  budget.text(from.size());
  for (std::size_t at = find_first(text, from); at != std::string_view::npos && most > 0;
       at = find_first(text, from), --most) {
    result += text.substr(0, at);
    result += to;
    text.remove_prefix(at + from.size());
  }
  result += text;
  return result.take();
}

bool all_cased(std::string_view text, bool (*is)(char32_t), Budget& budget) {
  budget.characters(text.size());
  bool found = false;
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    if (is_cased(character.code)) {
      if (!is(character.code)) return false;
      found = true;
    }
    at += character.bytes;
  }
  return found;
}

std::optional<Value> find_method(const Value& value, std::string_view name) {
  switch (value.kind()) {
    case Kind::kText:
      if (has(kOtherTextMethods, name)) fail_unread(value, name);
      return bound(kTextMethods, value, name);
    case Kind::kDict:
      if (has(kDictChanges, name)) return change(value, name);
      if (name == "fromkeys") fail_unread(value, name);
      return bound(kDictMethods, value, name);
    case Kind::kBool:
    case Kind::kInteger:
    case Kind::kFloat:
      if (has(kNumberAttributes, name)) fail_unread(value, name);
      return std::nullopt;
    case Kind::kList:
      break;
    default:
      return std::nullopt;
  }
  if (value.is_sequence_of(ListKind::kList) && has(kListChanges, name)) return change(value, name);
  const bool plain = value.is_sequence_of(ListKind::kList) || value.is_sequence_of(ListKind::kTuple);
  return plain ? bound(kListMethods, value, name) : std::nullopt;
}

}  // namespace loom::data::jinja
