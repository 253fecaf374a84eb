// The values of a template: the types of Python that a template can meet. Private to engine/text.
//
// Undefined   the value of an unknown name or key: empty when printed, false, and an error when used; it
//             knows its cause.
// Lists       of several kinds: lists and tuples, ranges and views of dicts, and iterators, which can be iterated once.
// Sharing     texts, lists and dicts do not change and are shared. A namespace changes and belongs to the rendering, as
//             do scopes; so there are no cycles of owners.
// Depth       of a value: kMostValueDepth at most, since values are destroyed by recursion.
// Threads     the values of a rendering belong to its thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/text/template/jinja/budget.h"

namespace loom::data::jinja {

class Interpreter;
class Value;
struct Arguments;
struct Dict;
struct Namespace;
struct List;
struct Loop;

enum class Kind : std::uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInteger,
  kFloat,
  kText,
  kList,
  kDict,
  kNamespace,
  kFunction,
  kLoop
};

enum class ListKind : std::uint8_t { kList, kTuple, kRange, kView, kIterator };

struct Undefined {
  std::string why;
};

struct Text {
  std::string bytes;
  bool is_safe = false;  // marked by the filter `safe`: other text is escaped when added to it
};

struct Function {
  std::string name;
  std::function<Value(Interpreter&, const Arguments&)> call;
  int depth = 0;
};

class Value {
 public:
  Value() : Value(undefined("")) {}
  Value(bool value) : data_(value) {}                         // NOLINT: literals become values
  Value(std::int64_t value) : data_(value) {}                 // NOLINT
  Value(double value) : data_(value) {}                       // NOLINT
  Value(std::string text) : Value(std::move(text), false) {}  // NOLINT
  Value(std::string_view text) : Value(std::string(text)) {}  // NOLINT
  Value(const char* text) : Value(std::string(text)) {}       // NOLINT
  Value(std::string text, bool is_safe);
  explicit Value(Namespace* value) : data_(value) {}

  static Value none() { return Value(None{}); }
  static Value undefined(std::string why);
  // TemplateError for values nested too deeply.
  static Value list(std::vector<Value> items, ListKind kind = ListKind::kList, std::string shown_as = "");
  static Value dict(std::vector<std::pair<Value, Value>> entries);
  static Value function(std::string name, std::function<Value(Interpreter&, const Arguments&)> call, int depth = 0);
  static Value loop(std::shared_ptr<Loop> loop);

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is(Kind kind) const { return this->kind() == kind; }
  bool is_undefined() const { return is(Kind::kUndefined); }
  bool is_none() const { return is(Kind::kNone); }
  bool is_text() const { return is(Kind::kText); }
  bool is_list() const { return is(Kind::kList); }
  bool is_dict() const { return is(Kind::kDict); }
  // A bool is one.
  bool is_integer() const { return is(Kind::kInteger) || is(Kind::kBool); }
  bool is_number() const { return is_integer() || is(Kind::kFloat); }
  bool is_sequence_of(ListKind kind) const;

  // --- Precondition: the kind matches. ---
  bool as_bool() const { return std::get<bool>(data_); }
  std::int64_t as_integer() const;
  double as_float() const;
  const std::string& as_text() const { return std::get<std::shared_ptr<const Text>>(data_)->bytes; }
  bool is_safe_text() const { return is_text() && std::get<std::shared_ptr<const Text>>(data_)->is_safe; }
  const std::string& why() const { return std::get<std::shared_ptr<const Undefined>>(data_)->why; }
  List& as_list() const { return *std::get<std::shared_ptr<List>>(data_); }
  const Dict& as_dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  Namespace& as_namespace() const { return *std::get<Namespace*>(data_); }
  const Function& as_function() const { return *std::get<std::shared_ptr<const Function>>(data_); }
  Loop& as_loop() const { return *std::get<std::shared_ptr<Loop>>(data_); }

  int depth() const;
  // The same object, or an equal plain value.
  bool is_same_as(const Value& other) const;

 private:
  struct None {
    bool operator==(const None&) const = default;
  };
  explicit Value(None none) : data_(none) {}

  // In the order of Kind.
  std::variant<std::shared_ptr<const Undefined>, None, bool, std::int64_t, double, std::shared_ptr<const Text>,
               std::shared_ptr<List>, std::shared_ptr<const Dict>, Namespace*, std::shared_ptr<const Function>,
               std::shared_ptr<Loop>>
      data_;
};

struct List {
  ListKind kind = ListKind::kList;
  std::vector<Value> items;
  std::string shown_as;   // for ranges and views: "range(0, 3)", "dict_keys"
  std::size_t taken = 0;  // from an iterator
  int depth = 1;
};

struct Dict {
  std::vector<std::pair<Value, Value>> entries;  // in insertion order; no key twice
  int depth = 1;

  const Value* find(std::string_view key, Budget& budget) const;
};

// The entry of that name in a list of pairs of name and value.
template <class Entries>
auto find_name(Entries& entries, std::string_view name, Budget& budget) {
  budget.work(1 + entries.size() / 8);
  return std::ranges::find_if(entries, [&](const auto& entry) {
    if (entry.first.size() != name.size()) return false;
    budget.text(name.size());
    return entry.first == name;
  });
}

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;

  const Value* find(std::string_view name, Budget& budget) const;
  void set(std::string_view name, Value value, Budget& budget);
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument of this place or name; nothing if it is absent.
  const Value* find(std::size_t place, std::string_view name) const;
  // Refuses arguments that `who` does not have: more than `names`, others, one given twice.
  void expect(std::string_view who, std::initializer_list<std::string_view> names, std::size_t required = 0) const;
};

// Like type(value).__name__.
std::string type_name(const Value& value);
// TemplateError for an Undefined, with its cause.
[[noreturn]] void fail_undefined(const Value& value);

bool is_true(const Value& value);
bool are_equal(const Value& a, const Value& b, Budget& budget);
// a < b. TemplateError if Python cannot compare them.
bool is_less(const Value& a, const Value& b, Budget& budget);
// The items that `for` would yield; an iterator is exhausted.
std::vector<Value> items_of(const Value& value, Budget& budget);
// len().
std::size_t length_of(const Value& value, Budget& budget);

// str() and repr().
std::string str(const Value& value, Budget& budget);
void append_str(Builder& to, const Value& value);

}  // namespace loom::data::jinja
