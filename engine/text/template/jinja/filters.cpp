#include "engine/text/template/jinja/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "engine/core/shown_text.h"
#include "engine/text/template/jinja/interpreter.h"
#include "engine/text/template/jinja/json.h"
#include "engine/text/template/jinja/methods.h"
#include "engine/text/template/jinja/operators.h"
#include "engine/text/template/jinja/text.h"

namespace loom::data::jinja {
namespace {

// --- arguments ---

std::int64_t integer_or(const Arguments& arguments, std::size_t place, std::string_view name, std::int64_t otherwise) {
  const Value* value = arguments.find(place, name);
  if (value == nullptr) return otherwise;
  if (value->is_undefined()) fail_undefined(*value);
  if (!value->is_integer()) fail("'{}' is of type '{}'; use a whole number", name, type_name(*value));
  return value->as_integer();
}

bool flag_or(const Arguments& arguments, std::size_t place, std::string_view name, bool otherwise) {
  const Value* value = arguments.find(place, name);
  return value == nullptr ? otherwise : is_true(*value);
}

std::string text_or(Interpreter& in, const Arguments& arguments, std::size_t place, std::string_view name,
                    std::string_view otherwise) {
  const Value* value = arguments.find(place, name);
  return value == nullptr ? std::string(otherwise) : str(*value, in.budget());
}

bool given(const Value* value) { return value != nullptr && !value->is_none(); }

// --- attributes by a text like "function.name" ---

std::vector<Value> path_of(const Value& attribute, Budget& budget) {
  if (attribute.is_integer()) return {attribute};
  std::vector<Value> path;
  const std::string text = str(attribute, budget);
  for (const auto part : split(text, ".", std::numeric_limits<std::size_t>::max(), budget)) {
    budget.objects(1);
    std::int64_t index = 0;
    const bool digits = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    if (digits && std::from_chars(part.data(), part.data() + part.size(), index).ec != std::errc()) {
      fail("the attribute '{}' is no index", shown_text(part));
    }
    path.push_back(digits ? Value(index) : Value(part));
  }
  return path;
}

Value along(Value value, const std::vector<Value>& path, Budget& budget, const Value* otherwise = nullptr) {
  for (const Value& part : path) {
    budget.work(1);
    value = item(value, part, budget);
    if (value.is_undefined() && given(otherwise)) value = *otherwise;
  }
  return value;
}

// What sort, min, max, unique compare: the item or its attribute, texts in lower case unless case counts.
class Key {
 public:
  Key(Interpreter& in, const Value* attribute, bool case_sensitive) : in_(&in), case_sensitive_(case_sensitive) {
    if (given(attribute)) path_ = path_of(*attribute, in.budget());
  }
  Value operator()(const Value& value) const {
    Value key = along(value, path_, in_->budget());
    if (!key.is_text() || case_sensitive_) return key;
    in_->budget().characters(key.as_text().size());
    return lower(key.as_text());
  }

 private:
  Interpreter* in_;
  std::vector<Value> path_;
  bool case_sensitive_;
};

struct Keyed {
  Value key;
  Value value;
};

std::vector<Value> sorted(Interpreter& in, std::vector<Keyed> all, bool reverse) {
  // As Python does it: equal ones keep their order, backwards too.
  in.budget().objects(all.size());
  const auto less = [&](const Keyed& a, const Keyed& b) { return is_less(a.key, b.key, in.budget()); };
  const auto more = [&](const Keyed& a, const Keyed& b) { return is_less(b.key, a.key, in.budget()); };
  if (reverse) {
    std::ranges::stable_sort(all, more);
  } else {
    std::ranges::stable_sort(all, less);
  }
  std::vector<Value> values;
  for (Keyed& each : all) values.push_back(std::move(each.value));
  return values;
}

// --- lists ---

Value first(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("first", {});
  if (value.is_sequence_of(ListKind::kIterator)) {
    List& list = value.as_list();
    return list.taken < list.items.size() ? list.items[list.taken++] : Value::undefined("there is no first item");
  }
  const auto items = items_of(value, in.budget());
  return items.empty() ? Value::undefined("there is no first item") : items.front();
}

Value last(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("last", {});
  if (value.is_sequence_of(ListKind::kIterator)) fail("an iterator has no last item; turn it into a list first");
  const auto items = items_of(value, in.budget());
  return items.empty() ? Value::undefined("there is no last item") : items.back();
}

Value length(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("length", {});
  return static_cast<std::int64_t>(length_of(value, in.budget()));
}

Value list(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("list", {});
  return Value::list(items_of(value, in.budget()));
}

Value reverse(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("reverse", {});
  auto items = items_of(value, in.budget());
  std::ranges::reverse(items);
  if (!value.is_text()) return Value::list(std::move(items), ListKind::kIterator);
  std::string text;
  for (const Value& each : items) text += each.as_text();
  return text;
}

Value join(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("join", {"d", "attribute"});
  const std::string between = text_or(in, arguments, 0, "d", "");
  const Value* attribute = arguments.find(1, "attribute");
  const auto path = given(attribute) ? path_of(*attribute, in.budget()) : std::vector<Value>{};
  Builder joined(in.budget());
  bool first_one = true;
  for (const Value& each : items_of(value, in.budget())) {
    if (!first_one) joined += between;
    append_str(joined, along(each, path, in.budget()));
    first_one = false;
  }
  return joined.take();
}

Value items(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("items", {});
  if (value.is_undefined()) return Value::list({}, ListKind::kIterator);
  if (!value.is_dict()) fail("'items' takes a dict, and not a value of type '{}'", type_name(value));
  std::vector<Value> pairs;
  for (const auto& [key, each] : value.as_dict().entries) {
    in.budget().objects(2);
    pairs.push_back(Value::list({key, each}, ListKind::kTuple));
  }
  return Value::list(std::move(pairs), ListKind::kIterator);
}

Value sort(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("sort", {"reverse", "case_sensitive", "attribute"});
  const Value* attribute = arguments.find(2, "attribute");
  const bool several = given(attribute) && attribute->is_text() && attribute->as_text().find(',') != std::string::npos;
  if (several) fail("'sort' by several attributes is not read; sort by one after another");
  const Key key(in, attribute, flag_or(arguments, 1, "case_sensitive", false));
  std::vector<Keyed> all;
  for (const Value& each : items_of(value, in.budget())) all.push_back({key(each), each});
  return Value::list(sorted(in, std::move(all), flag_or(arguments, 0, "reverse", false)));
}

Value dictsort(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("dictsort", {"case_sensitive", "by", "reverse"});
  if (!value.is_dict()) fail("'dictsort' takes a dict, and not a value of type '{}'", type_name(value));
  const std::string by = text_or(in, arguments, 1, "by", "key");
  if (by != "key" && by != "value") fail("'dictsort' sorts by 'key' or 'value', and not by '{}'", shown_text(by));
  const Key key(in, nullptr, flag_or(arguments, 0, "case_sensitive", false));
  std::vector<Keyed> all;
  for (const auto& [name, each] : value.as_dict().entries) {
    in.budget().objects(2);
    all.push_back({key(by == "key" ? name : each), Value::list({name, each}, ListKind::kTuple)});
  }
  return Value::list(sorted(in, std::move(all), flag_or(arguments, 2, "reverse", false)));
}

Value extreme(Interpreter& in, const Value& value, const Arguments& arguments, std::string_view who, bool most) {
  arguments.expect(who, {"case_sensitive", "attribute"});
  const Key key(in, arguments.find(1, "attribute"), flag_or(arguments, 0, "case_sensitive", false));
  const auto all = items_of(value, in.budget());
  if (all.empty()) return Value::undefined("there is no item to compare");
  Value best = all.front();
  Value best_key = key(best);
  for (std::size_t i = 1; i < all.size(); ++i) {
    Value its = key(all[i]);
    if (!(most ? is_less(best_key, its, in.budget()) : is_less(its, best_key, in.budget()))) continue;
    best = all[i];
    best_key = std::move(its);
  }
  return best;
}

Value min(Interpreter& in, const Value& value, const Arguments& arguments) {
  return extreme(in, value, arguments, "min", false);
}
Value max(Interpreter& in, const Value& value, const Arguments& arguments) {
  return extreme(in, value, arguments, "max", true);
}

Value sum(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("sum", {"attribute", "start"});
  const Value* attribute = arguments.find(0, "attribute");
  const auto path = given(attribute) ? path_of(*attribute, in.budget()) : std::vector<Value>{};
  const Value* start = arguments.find(1, "start");
  Value all = start == nullptr ? Value(std::int64_t{0}) : *start;
  if (all.is_text()) fail("'sum' takes no text; use the filter 'join'");
  for (const Value& each : items_of(value, in.budget()))
    all = binary("+", all, along(each, path, in.budget()), in.budget());
  return all;
}

Value unique(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("unique", {"case_sensitive", "attribute"});
  const Key key(in, arguments.find(1, "attribute"), flag_or(arguments, 0, "case_sensitive", false));
  std::vector<Value> keys;
  std::vector<Value> kept;
  for (const Value& each : items_of(value, in.budget())) {
    Value its = key(each);
    const auto same = [&](const Value& other) { return are_equal(other, its, in.budget()); };
    if (std::ranges::any_of(keys, same)) continue;
    keys.push_back(std::move(its));
    kept.push_back(each);
  }
  return Value::list(std::move(kept), ListKind::kIterator);
}

Value batch(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("batch", {"linecount", "fill_with"}, 1);
  const std::int64_t size = integer_or(arguments, 0, "linecount", 1);
  const Value* fill = arguments.find(1, "fill_with");
  std::vector<Value> batches;
  std::vector<Value> row;
  for (const Value& each : items_of(value, in.budget())) {
    in.budget().objects(1);
    if (std::cmp_equal(row.size(), size)) batches.push_back(Value::list(std::exchange(row, {})));
    row.push_back(each);
  }
  if (!row.empty()) {
    while (given(fill) && std::cmp_less(row.size(), size)) {
      in.budget().values(1);
      row.push_back(*fill);
    }
    batches.push_back(Value::list(std::move(row)));
  }
  return Value::list(std::move(batches), ListKind::kIterator);
}

// --- map and related filters ---

Arguments without_first(const Arguments& arguments, std::size_t count) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<std::ptrdiff_t>(std::min(count, rest.positional.size())));
  return rest;
}

Value map(Interpreter& in, const Value& value, const Arguments& arguments) {
  std::vector<Value> mapped;
  const auto all = items_of(value, in.budget());
  in.budget().objects(all.size());
  const auto attribute = std::ranges::find(arguments.named, "attribute", [](const auto& each) { return each.first; });
  if (arguments.positional.empty() && attribute != arguments.named.end()) {
    arguments.expect("map", {"attribute", "default"});
    const auto path = path_of(attribute->second, in.budget());
    const Value* otherwise = arguments.find(1, "default");
    for (const Value& each : all) mapped.push_back(along(each, path, in.budget(), otherwise));
  } else {
    if (arguments.positional.empty()) fail("'map' lacks the name of a filter, or attribute=");
    const std::string name = str(arguments.positional.front(), in.budget());
    const Arguments rest = without_first(arguments, 1);
    for (const Value& each : all) mapped.push_back(in.apply_filter(name, each, rest));
  }
  return Value::list(std::move(mapped), ListKind::kIterator);
}

Value chosen(Interpreter& in, const Value& value, const Arguments& arguments, bool by_attribute, bool wanted) {
  if (by_attribute && arguments.positional.empty()) fail("'selectattr' and 'rejectattr' lack the name of an attribute");
  const auto path = by_attribute ? path_of(arguments.positional.front(), in.budget()) : std::vector<Value>{};
  const std::size_t place = by_attribute ? 1 : 0;
  const bool has_test = arguments.positional.size() > place;
  const std::string test = has_test ? str(arguments.positional[place], in.budget()) : "";
  const Arguments rest = without_first(arguments, place + 1);
  std::vector<Value> kept;
  for (const Value& each : items_of(value, in.budget())) {
    const Value subject = along(each, path, in.budget());
    const bool holds = has_test ? in.apply_test(test, subject, rest) : is_true(subject);
    if (holds == wanted) kept.push_back(each);
  }
  return Value::list(std::move(kept), ListKind::kIterator);
}

Value select(Interpreter& in, const Value& value, const Arguments& arguments) {
  return chosen(in, value, arguments, false, true);
}
Value reject(Interpreter& in, const Value& value, const Arguments& arguments) {
  return chosen(in, value, arguments, false, false);
}
Value selectattr(Interpreter& in, const Value& value, const Arguments& arguments) {
  return chosen(in, value, arguments, true, true);
}
Value rejectattr(Interpreter& in, const Value& value, const Arguments& arguments) {
  return chosen(in, value, arguments, true, false);
}

Value attr(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("attr", {"name"}, 1);
  const Value& name = *arguments.find(0, "name");
  if (!name.is_text()) fail("'attr' takes the name of an attribute");
  if (value.is_dict()) {
    auto method = find_method(value, name.as_text());
    return method ? *method : Value::undefined(fmt::format("a dict has no attribute '{}'", shown_text(name.as_text())));
  }
  return attribute(value, name.as_text(), in.budget());
}

// --- texts ---

template <std::string (*Change)(std::string_view)>
Value changed(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("upper, lower, capitalize", {});
  const std::string text = str(value, in.budget());
  in.budget().characters(text.size());
  return {Change(text), value.is_safe_text()};
}

// Words begin behind white space, - ( { [ and <, other than for str.title().
Value title_words(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("title", {});
  const std::string text = str(value, in.budget());
  std::string result;
  bool begins = true;
  in.budget().work(text.size(), 4);
  for_each_character(text, [&](std::string_view character) {
    const bool parts =
        std::string_view("-({[<").find(character) != std::string_view::npos || strip_left(character).empty();
    result += parts ? std::string(character) : begins ? upper(character) : lower(character);
    begins = parts;
  });
  return result;
}

Value trim(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("trim", {"chars"});
  const Value* characters = arguments.find(0, "chars");
  const std::string text = str(value, in.budget());
  if (!given(characters)) return {std::string(strip_left(strip_right(text))), value.is_safe_text()};
  if (!characters->is_text()) fail("'trim' takes a text of characters");
  const std::string& gone = characters->as_text();
  return strip_left(strip_right(text, gone, in.budget()), gone, in.budget());
}

Value string(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("string", {});
  return value.is_text() ? value : Value(str(value, in.budget()));
}

Value safe(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("safe", {});
  return {str(value, in.budget()), true};
}

Value escape(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("escape", {});
  return value.is_safe_text() ? value : Value(html_escaped(str(value, in.budget()), in.budget()), true);
}

Value replace(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("replace", {"old", "new", "count"}, 2);
  if (value.is_safe_text()) fail("'replace' of a text marked safe is not read; replace first");
  const Value* count = arguments.find(2, "count");
  const std::int64_t most = given(count) ? integer_or(arguments, 2, "count", -1) : -1;
  return replaced(str(value, in.budget()), text_or(in, arguments, 0, "old", ""), text_or(in, arguments, 1, "new", ""),
                  most < 0 ? std::numeric_limits<std::size_t>::max() : static_cast<std::size_t>(most), in.budget());
}

Value indent(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("indent", {"width", "first", "blank"});
  Builder by(in.budget());
  const Value* width = arguments.find(0, "width");
  if (width != nullptr && width->is_text()) {
    by += width->as_text();
  } else {
    by.repeat(" ", static_cast<std::size_t>(std::max<std::int64_t>(integer_or(arguments, 0, "width", 4), 0)));
  }
  const std::string indention = by.take();
  const bool blank = flag_or(arguments, 2, "blank", false);
  std::string text = str(value, in.budget());
  text += '\n';
  Builder result(in.budget());
  if (flag_or(arguments, 1, "first", false)) result += indention;
  bool first_line = true;
  for (const auto line : split_lines(text, false, in.budget())) {
    if (!first_line) {
      result += "\n";
      if (blank || !line.empty()) result += indention;
    }
    result += line;
    first_line = false;
  }
  return result.take();
}

Value center(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("center", {"width"});
  const auto method = find_method(Value(str(value, in.budget())), "center");
  return in.call(*method, {.positional = {integer_or(arguments, 0, "width", 80)}, .named = {}});
}

Value wordcount(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("wordcount", {});
  std::int64_t words = 0;
  bool inside = false;
  const std::string text = str(value, in.budget());
  in.budget().characters(text.size());
  for_each_character(text, [&](std::string_view character) {
    const bool word = is_word(character);
    words += word && !inside ? 1 : 0;
    inside = word;
  });
  return words;
}

Value truncate(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("truncate", {"length", "killwords", "end", "leeway"});
  const std::string text = str(value, in.budget());
  const std::string end = text_or(in, arguments, 2, "end", "...");
  const std::int64_t most = integer_or(arguments, 0, "length", 255);
  const Value* given_leeway = arguments.find(3, "leeway");
  const std::int64_t leeway = given(given_leeway) ? integer_or(arguments, 3, "leeway", 5) : 5;
  const auto tail = static_cast<std::int64_t>(character_count(end));
  if (most < tail || leeway < 0) fail("'truncate' to {} characters has no place for its end of {}", most, tail);
  if (static_cast<std::int64_t>(character_count(text)) - leeway <= most) return text;
  std::string cut = text.substr(0, offset_of(text, static_cast<std::size_t>(most - tail)));
  if (!flag_or(arguments, 1, "killwords", false)) cut = cut.substr(0, cut.rfind(' '));
  return cut + end;
}

Value urlencode(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("urlencode", {});
  if (value.is_dict() || value.is_list()) fail("'urlencode' of pairs is not read; encode each text");
  Builder result(in.budget());
  for (const char byte : str(value, in.budget())) {
    in.budget().work(1);
    const bool plain = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9') ||
                       std::string_view("_.-~/").find(byte) != std::string_view::npos;
    result += plain ? std::string(1, byte) : fmt::format("%{:02X}", static_cast<unsigned char>(byte));
  }
  return result.take();
}

// --- numbers ---

Value absolute(Interpreter&, const Value& value, const Arguments& arguments) {
  arguments.expect("abs", {});
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_number()) fail("'abs' takes a number, and not a value of type '{}'", type_name(value));
  if (!value.is_integer()) return std::abs(value.as_float());
  return value.as_integer() < 0 ? negative(value) : positive(value);
}

// The number a text says, as float() reads it.
std::optional<double> float_of(std::string_view text) {
  std::string digits(strip_left(strip_right(text)));
  if (digits.starts_with('+')) digits.erase(0, 1);
  if (digits.find('_') != std::string::npos) return std::nullopt;
  double value = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (read.ptr != digits.data() + digits.size() || digits.empty()) return std::nullopt;
  if (read.ec == std::errc::result_out_of_range) fail("the number {} does not fit", shown_text(digits));
  return read.ec == std::errc() ? std::optional(value) : std::nullopt;
}

std::optional<std::int64_t> integer_of(std::string_view text, int base) {
  std::string digits(strip_left(strip_right(text)));
  if (digits.starts_with('+')) digits.erase(0, 1);
  std::int64_t value = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (read.ec == std::errc::result_out_of_range) fail("the number {} has more than 64 bits", shown_text(digits));
  const bool whole = read.ec == std::errc() && read.ptr == digits.data() + digits.size();
  return whole ? std::optional(value) : std::nullopt;
}

std::optional<std::int64_t> truncated(double value) {
  if (std::isnan(value) || std::isinf(value)) return std::nullopt;
  if (std::abs(value) >= 9.2e18) fail("a whole number leaves 64 bits");
  return static_cast<std::int64_t>(value);
}

Value integer(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("int", {"default", "base"});
  if (value.is_text()) in.budget().characters(value.as_text().size());
  if (value.is_undefined()) fail_undefined(value);
  const Value* otherwise = arguments.find(0, "default");
  const std::int64_t base = integer_or(arguments, 1, "base", 10);
  if (base < 2 || base > 36) fail("'int' has no base {}", base);
  std::optional<std::int64_t> result;
  if (value.is_integer()) {
    result = value.as_integer();
  } else if (value.is_number()) {
    result = truncated(value.as_float());
  } else if (value.is_text()) {
    result = integer_of(value.as_text(), static_cast<int>(base));
    const auto number = result ? std::nullopt : float_of(value.as_text());
    if (number) result = truncated(*number);
  }
  if (result) return *result;
  return otherwise == nullptr ? Value(std::int64_t{0}) : *otherwise;
}

Value real(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("float", {"default"});
  if (value.is_text()) in.budget().characters(value.as_text().size());
  if (value.is_undefined()) fail_undefined(value);
  if (value.is_number()) return value.as_float();
  const Value* otherwise = arguments.find(0, "default");
  if (const auto number = value.is_text() ? float_of(value.as_text()) : std::nullopt) return *number;
  return otherwise == nullptr ? Value(0.0) : *otherwise;
}

Value round(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("round", {"precision", "method"});
  if (!value.is_number()) fail("'round' takes a number, and not a value of type '{}'", type_name(value));
  const std::int64_t precision = integer_or(arguments, 0, "precision", 0);
  const std::string method = text_or(in, arguments, 1, "method", "common");
  if (precision < 0 || precision > 15) fail("'round' to {} digits is not read; use 0 to 15", precision);
  const double number = value.as_float();
  if (method == "common") {
    if (value.is_integer()) return value.as_integer();
    if (!std::isfinite(number)) return number;
    double result = 0;
    // Rounds the number's own digits, halves to the even one, as Python's round() does.
    const std::string digits = fmt::format("{:.{}f}", number, precision);
    std::from_chars(digits.data(), digits.data() + digits.size(), result);
    return result;
  }
  if (method != "ceil" && method != "floor") fail("'round' has no method '{}'", shown_text(method));
  const double scale = std::pow(10.0, static_cast<double>(precision));
  return (method == "ceil" ? std::ceil(number * scale) : std::floor(number * scale)) / scale;
}

// --- others ---

Value or_default(Interpreter&, const Value& value, const Arguments& arguments) {
  arguments.expect("default", {"default_value", "boolean"});
  const bool absent = value.is_undefined() || (flag_or(arguments, 1, "boolean", false) && !is_true(value));
  if (!absent) return value;
  const Value* otherwise = arguments.find(0, "default_value");
  return otherwise == nullptr ? Value("") : *otherwise;
}

Value tojson(Interpreter& in, const Value& value, const Arguments& arguments) {
  arguments.expect("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style{.indent = "", .sort_keys = flag_or(arguments, 3, "sort_keys", false)};
  style.ensure_ascii = flag_or(arguments, 0, "ensure_ascii", false);
  const Value* indent = arguments.find(1, "indent");
  if (given(indent)) {
    style.indented = true;
    style.between_items.assign(1, ',');
    if (indent->is_text()) {
      style.indent = indent->as_text();
    } else {
      const std::int64_t width = integer_or(arguments, 1, "indent", 0);
      if (width > 100) fail("'tojson' indents by 100 characters at most, and not by {}", width);
      style.indent.assign(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' ');
    }
  }
  const Value* separators = arguments.find(2, "separators");
  if (given(separators)) {
    const auto pair = items_of(*separators, in.budget());
    if (pair.size() != 2 || !pair[0].is_text() || !pair[1].is_text()) fail("'separators' are two texts");
    style.between_items = pair[0].as_text();
    style.behind_key = pair[1].as_text();
  }
  return json_text(value, style, in.budget());
}

struct NamedFilter {
  std::string_view name;
  Filter filter;
};
constexpr NamedFilter kFilters[] = {
    {"abs", absolute},
    {"attr", attr},
    {"batch", batch},
    {"capitalize", changed<capitalize>},
    {"center", center},
    {"count", length},
    {"d", or_default},
    {"default", or_default},
    {"dictsort", dictsort},
    {"e", escape},
    {"escape", escape},
    {"first", first},
    {"float", real},
    {"indent", indent},
    {"int", integer},
    {"items", items},
    {"join", join},
    {"last", last},
    {"length", length},
    {"list", list},
    {"lower", changed<lower>},
    {"map", map},
    {"max", max},
    {"min", min},
    {"reject", reject},
    {"rejectattr", rejectattr},
    {"replace", replace},
    {"reverse", reverse},
    {"round", round},
    {"safe", safe},
    {"select", select},
    {"selectattr", selectattr},
    {"sort", sort},
    {"string", string},
    {"sum", sum},
    {"title", title_words},
    {"tojson", tojson},
    {"trim", trim},
    {"truncate", truncate},
    {"unique", unique},
    {"upper", changed<upper>},
    {"urlencode", urlencode},
    {"wordcount", wordcount},
};

}  // namespace

Filter find_filter(std::string_view name) {
  const auto* const found = std::ranges::find(kFilters, name, &NamedFilter::name);
  if (found == std::end(kFilters)) fail("the filter '{}' is not read in chat templates", shown_text(name));
  return found->filter;
}

}  // namespace loom::data::jinja
