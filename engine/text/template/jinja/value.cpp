#include "engine/text/template/jinja/value.h"

#include <algorithm>

#include "engine/core/shown_text.h"
#include "engine/text/template/jinja/loop.h"
#include "engine/text/template/jinja/text.h"

namespace loom::data::jinja {
namespace {

int checked_depth(int depth) {
  if (depth > kMostValueDepth) fail("lists and dicts are nested more than {} levels deep", kMostValueDepth);
  return depth;
}

bool lists_equal(const List& a, const List& b, Budget& budget) {
  const bool comparable = a.kind == b.kind && a.kind != ListKind::kView && a.kind != ListKind::kIterator;
  if (!comparable) return &a == &b;
  return std::ranges::equal(a.items, b.items, [&](const Value& x, const Value& y) { return are_equal(x, y, budget); });
}

bool dicts_equal(const Dict& a, const Dict& b, Budget& budget) {
  if (a.entries.size() != b.entries.size()) return false;
  return std::ranges::all_of(a.entries, [&](const auto& entry) {
    return std::ranges::any_of(b.entries, [&](const auto& other) {
      return are_equal(entry.first, other.first, budget) && are_equal(entry.second, other.second, budget);
    });
  });
}

bool lists_less(const List& a, const List& b, Budget& budget) {
  for (std::size_t i = 0; i < std::min(a.items.size(), b.items.size()); ++i) {
    if (!are_equal(a.items[i], b.items[i], budget)) return is_less(a.items[i], b.items[i], budget);
  }
  return a.items.size() < b.items.size();
}

void append_repr(Builder& to, const Value& value, int level);

void append_items(Builder& to, const std::vector<Value>& items, int level) {
  std::string_view between;
  for (const Value& item : items) {
    to += between;
    append_repr(to, item, level);
    between = ", ";
  }
}

void append_list(Builder& to, const List& list, int level) {
  if (list.kind == ListKind::kIterator) fail("an iterator has no text; turn it into a list with the filter 'list'");
  if (list.kind == ListKind::kRange) {
    if (list.shown_as.empty()) fail("a part of a range has no text; turn it into a list with the filter 'list'");
    to += list.shown_as;
    return;
  }
  const bool tuple = list.kind == ListKind::kTuple;
  if (list.kind == ListKind::kView) to += list.shown_as + "(";
  to += tuple ? "(" : "[";
  append_items(to, list.items, level);
  if (tuple) to += list.items.size() == 1 ? ",)" : ")";
  if (!tuple) to += "]";
  if (list.kind == ListKind::kView) to += ")";
}

template <class Entries, class Key>
void append_entries(Builder& to, const Entries& entries, int level, Key&& append_key) {
  std::string_view between = "{";
  for (const auto& [key, value] : entries) {
    to += between;
    append_key(key);
    to += ": ";
    append_repr(to, value, level);
    between = ", ";
  }
  to += entries.empty() ? "{}" : "}";
}

void append_repr(Builder& to, const Value& value, int level) {
  to.budget().work(1);
  checked_depth(level);
  switch (value.kind()) {
    case Kind::kUndefined:
      to += "Undefined";
      return;
    case Kind::kText:
      to.budget().characters(value.as_text().size());
      to += jinja::quoted(value.as_text());
      return;
    case Kind::kList:
      return append_list(to, value.as_list(), level + 1);
    case Kind::kDict:
      return append_entries(to, value.as_dict().entries, level + 1,
                            [&](const Value& key) { append_repr(to, key, level + 1); });
    case Kind::kNamespace:
      to += "<Namespace ";
      append_entries(to, value.as_namespace().attributes, level + 1,
                     [&](const std::string& key) { to += jinja::quoted(key); });
      to += ">";
      return;
    default:
      return append_str(to, value);
  }
}

}  // namespace

Value::Value(std::string text, bool is_safe)
    : data_(std::make_shared<const Text>(Text{.bytes = std::move(text), .is_safe = is_safe})) {}

Value Value::undefined(std::string why) {
  static const auto plain = std::make_shared<const Undefined>();
  Value value(None{});
  if (why.empty()) {
    value.data_ = plain;
  } else {
    value.data_ = std::make_shared<const Undefined>(Undefined{std::move(why)});
  }
  return value;
}

Value Value::list(std::vector<Value> items, ListKind kind, std::string shown_as) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  Value value(None{});
  value.data_ = std::make_shared<List>(List{
      .kind = kind, .items = std::move(items), .shown_as = std::move(shown_as), .depth = checked_depth(depth + 1)});
  return value;
}

Value Value::dict(std::vector<std::pair<Value, Value>> entries) {
  int depth = 0;
  for (const auto& [key, item] : entries) depth = std::max({depth, key.depth(), item.depth()});
  Value value(None{});
  value.data_ = std::make_shared<const Dict>(Dict{.entries = std::move(entries), .depth = checked_depth(depth + 1)});
  return value;
}

Value Value::function(std::string name, std::function<Value(Interpreter&, const Arguments&)> call, int depth) {
  Value value(None{});
  value.data_ = std::make_shared<const Function>(
      Function{.name = std::move(name), .call = std::move(call), .depth = checked_depth(depth + 1)});
  return value;
}

Value Value::loop(std::shared_ptr<Loop> loop) {
  Value value(None{});
  value.data_ = std::move(loop);
  return value;
}

bool Value::is_sequence_of(ListKind kind) const { return is_list() && as_list().kind == kind; }

std::int64_t Value::as_integer() const {
  return is(Kind::kBool) ? static_cast<std::int64_t>(as_bool()) : std::get<std::int64_t>(data_);
}

double Value::as_float() const {
  return is(Kind::kFloat) ? std::get<double>(data_) : static_cast<double>(as_integer());
}

int Value::depth() const {
  switch (kind()) {
    case Kind::kList:
      return as_list().depth;
    case Kind::kDict:
      return as_dict().depth;
    case Kind::kFunction:
      return as_function().depth;
    case Kind::kLoop:
      return as_loop().depth();
    default:
      return 0;
  }
}

bool Value::is_same_as(const Value& other) const {
  if (kind() != other.kind()) return false;
  if (is_text()) return as_text() == other.as_text();
  return data_ == other.data_;
}

const Value* Dict::find(std::string_view key, Budget& budget) const {
  budget.work(1 + entries.size() / 8);
  for (const auto& [name, value] : entries) {
    if (!name.is_text() || name.as_text().size() != key.size()) continue;
    budget.text(key.size());
    if (name.as_text() == key) return &value;
  }
  return nullptr;
}

const Value* Namespace::find(std::string_view name, Budget& budget) const {
  const auto found = find_name(attributes, name, budget);
  return found == attributes.end() ? nullptr : &found->second;
}

void Namespace::set(std::string_view name, Value value, Budget& budget) {
  const auto found = find_name(attributes, name, budget);
  if (found != attributes.end()) {
    found->second = std::move(value);
  } else {
    budget.objects(1);
    budget.text(name.size());
    attributes.emplace_back(std::string(name), std::move(value));
  }
}

const Value* Arguments::find(std::size_t place, std::string_view name) const {
  if (place < positional.size()) return &positional[place];
  const auto found = std::ranges::find(named, name, [](const auto& entry) { return entry.first; });
  return found == named.end() ? nullptr : &found->second;
}

void Arguments::expect(std::string_view who, std::initializer_list<std::string_view> names,
                       std::size_t required) const {
  if (positional.size() > names.size()) {
    fail("'{}' takes {} arguments at most, and {} are given", who, names.size(), positional.size());
  }
  for (const auto& [name, value] : named) {
    const auto* const found = std::ranges::find(names, std::string_view(name));
    if (found == names.end()) fail("'{}' has no argument '{}'", who, shown_text(name));
    if (static_cast<std::size_t>(found - names.begin()) < positional.size()) {
      fail("'{}' is given its argument '{}' twice", who, name);
    }
  }
  for (std::size_t i = positional.size(); i < required; ++i) {
    if (find(i, names.begin()[i]) == nullptr) fail("'{}' lacks its argument '{}'", who, names.begin()[i]);
  }
}

std::string type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInteger:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kText:
      return "str";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kFunction:
      return "function";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kList:
      break;
  }
  switch (value.as_list().kind) {
    case ListKind::kList:
      return "list";
    case ListKind::kTuple:
      return "tuple";
    case ListKind::kRange:
      return "range";
    case ListKind::kView:
      return value.as_list().shown_as;
    case ListKind::kIterator:
      break;
  }
  return "iterator";
}

void fail_undefined(const Value& value) {
  fail("{}", value.why().empty() ? "an undefined value is used" : value.why());
}

bool is_true(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInteger:
      return value.as_integer() != 0;
    case Kind::kFloat:
      return value.as_float() != 0;
    case Kind::kText:
      return !value.as_text().empty();
    case Kind::kList:
      return value.is_sequence_of(ListKind::kIterator) || !value.as_list().items.empty();
    case Kind::kDict:
      return !value.as_dict().entries.empty();
    default:
      return true;
  }
}

bool are_equal(const Value& a, const Value& b, Budget& budget) {
  budget.work(1);
  if (a.is_number() && b.is_number()) {
    return a.is_integer() && b.is_integer() ? a.as_integer() == b.as_integer() : a.as_float() == b.as_float();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kText:
      budget.text(std::min(a.as_text().size(), b.as_text().size()));
      return a.as_text() == b.as_text();
    case Kind::kList:
      return lists_equal(a.as_list(), b.as_list(), budget);
    case Kind::kDict:
      return dicts_equal(a.as_dict(), b.as_dict(), budget);
    default:
      return a.is_same_as(b);
  }
}

bool is_less(const Value& a, const Value& b, Budget& budget) {
  budget.work(1);
  if (a.is_undefined()) fail_undefined(a);
  if (b.is_undefined()) fail_undefined(b);
  if (a.is_number() && b.is_number()) {
    return a.is_integer() && b.is_integer() ? a.as_integer() < b.as_integer() : a.as_float() < b.as_float();
  }
  if (a.is_text() && b.is_text()) {
    budget.text(std::min(a.as_text().size(), b.as_text().size()));
    return a.as_text() < b.as_text();
  }
  for (const ListKind kind : {ListKind::kList, ListKind::kTuple}) {
    if (a.is_sequence_of(kind) && b.is_sequence_of(kind)) return lists_less(a.as_list(), b.as_list(), budget);
  }
  fail("a value of type '{}' cannot be ordered beside one of type '{}'", type_name(a), type_name(b));
}

std::vector<Value> items_of(const Value& value, Budget& budget) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Kind::kUndefined:
      return items;
    case Kind::kText:
      budget.work(value.as_text().size(), kWorkPerValue + kWorkPerObject);
      for_each_character(value.as_text(), [&](std::string_view character) { items.emplace_back(character); });
      return items;
    case Kind::kList: {
      List& list = value.as_list();
      budget.values(list.items.size() - list.taken);
      items.assign(list.items.begin() + static_cast<std::ptrdiff_t>(list.taken), list.items.end());
      if (list.kind == ListKind::kIterator) list.taken = list.items.size();
      return items;
    }
    case Kind::kDict:
      budget.values(value.as_dict().entries.size());
      for (const auto& entry : value.as_dict().entries) items.push_back(entry.first);
      return items;
    default:
      fail("a value of type '{}' cannot be walked through", type_name(value));
  }
}

std::size_t length_of(const Value& value, Budget& budget) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kText:
      budget.text(value.as_text().size());
      return character_count(value.as_text());
    case Kind::kDict:
      return value.as_dict().entries.size();
    case Kind::kList:
      if (value.as_list().kind != ListKind::kIterator) return value.as_list().items.size();
      [[fallthrough]];
    default:
      fail("a value of type '{}' has no length", type_name(value));
  }
}

void append_str(Builder& to, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return;
    case Kind::kNone:
      to += "None";
      return;
    case Kind::kBool:
      to += value.as_bool() ? "True" : "False";
      return;
    case Kind::kInteger:
      to += fmt::format("{}", value.as_integer());
      return;
    case Kind::kFloat:
      to += float_text(value.as_float());
      return;
    case Kind::kText:
      to += value.as_text();
      return;
    case Kind::kFunction:
      fail("the function '{}' has no text; call it", shown_text(value.as_function().name));
    case Kind::kLoop:
      fail("'loop' has no text; take one of its attributes");
    default:
      return append_repr(to, value, 0);
  }
}

std::string str(const Value& value, Budget& budget) {
  Builder builder(budget);
  append_str(builder, value);
  return builder.take();
}

}  // namespace loom::data::jinja
