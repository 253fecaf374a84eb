// Value: an input or result of a module's forward - a tensor, or a list or dict of values, or a plain number, flag or
// text.
//
// Wrappers (sharding, recompute) walk values without knowing the model: map_tensors() reaches every tensor in nested
// containers. Args: positional and named arguments of one call.
//
// A forward that returns a struct of tensors gives the struct `nn::Value to_value() const`, which names them in a dict;
// the caller of the module reads that dict, or makes the struct from it again:
//
//   struct Output {
//     Tensor logits, hidden;
//     nn::Value to_value() const { return nn::ValueDict{{"logits", logits}, {"hidden", hidden}}; }
//     static Output from(const nn::Value& v) { return {v["logits"], v["hidden"]}; }
//   };
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "engine/tensor/tensor.h"

namespace loom::nn {

class Value;
using ValueList = std::vector<Value>;
using ValueDict = std::vector<std::pair<std::string, Value>>;  // in insertion order

// A struct that lists its tensors.
template <class T>
concept HasToValue = requires(const T& held) {
  { held.to_value() } -> std::same_as<Value>;
};

class Value {
 public:
  Value() = default;  // none
  Value(Tensor tensor) : held_(std::move(tensor)) {}
  Value(bool flag) : held_(flag) {}
  Value(int number) : held_(std::int64_t{number}) {}
  Value(std::int64_t number) : held_(number) {}
  Value(double number) : held_(number) {}
  Value(const char* text) : held_(std::string(text)) {}
  Value(std::string text) : held_(std::move(text)) {}
  Value(ValueList list) : held_(std::move(list)) {}
  Value(ValueDict dict) : held_(std::move(dict)) {}
  Value(std::vector<Tensor> tensors) : held_(ValueList(tensors.begin(), tensors.end())) {}
  // A struct, through its to_value().
  template <class T>
  requires(std::is_class_v<T> && !std::is_convertible_v<T, Tensor> && !std::is_convertible_v<T, std::string>)
      Value(const T& held) {
    static_assert(HasToValue<T>,
                  "a struct is not an nn::Value: sharding and recompute must reach the tensors in it. Give it "
                  "'nn::Value to_value() const' that returns an nn::ValueDict of its tensors (engine/nn/value.h)");
    if constexpr (HasToValue<T>) *this = held.to_value();
  }

  bool is_none() const { return std::holds_alternative<std::monostate>(held_); }
  bool is_tensor() const { return std::holds_alternative<Tensor>(held_); }
  bool is_list() const { return std::holds_alternative<ValueList>(held_); }
  bool is_dict() const { return std::holds_alternative<ValueDict>(held_); }
  // Throw ModelError naming the type that is held instead.
  const Tensor& tensor() const;
  const ValueList& list() const;
  const ValueDict& dict() const;
  bool flag() const;
  std::int64_t number() const;
  // The entry of a dict. Throws ModelError naming the keys there are.
  const Value& operator[](std::string_view key) const;
  operator const Tensor&() const { return tensor(); }

  // The same value with every tensor t replaced by f(t), containers in order.
  Value map_tensors(const std::function<Tensor(const Tensor&)>& f) const;
  // Appends every tensor, in the same order.
  void collect_tensors(std::vector<Tensor>& tensors) const;

 private:
  template <class T>
  const T& get(std::string_view wanted) const;
  std::variant<std::monostate, Tensor, bool, std::int64_t, double, std::string, ValueList, ValueDict> held_;
};

// A possible argument of a module's call. A pointer would become a flag.
template <class T>
concept IsArgument = std::is_constructible_v<Value, T> &&
    (!std::is_pointer_v<std::decay_t<T>> || std::is_convertible_v<T, const char*>);

struct Args {
  ValueList positional;
  ValueDict named;

  // One more positional argument.
  template <class T>
  void add(T&& argument) {
    static_assert(
        IsArgument<T>,
        "a module takes tensors, bool, int, std::int64_t, double, text, lists and dicts of these, and structs "
        "with 'nn::Value to_value() const' (engine/nn/value.h): give '*p' instead of a pointer p, and "
        "'static_cast<std::int64_t>(n)' instead of an integer n of another type");
    if constexpr (IsArgument<T>) positional.emplace_back(std::forward<T>(argument));
  }
  // Positional argument i as a tensor. Throws ModelError when there are fewer.
  const Tensor& tensor(std::size_t i) const;
  // A named argument, or none.
  const Value& find(std::string_view name) const;

  void map_tensors(const std::function<Tensor(const Tensor&)>& f);
  std::vector<Tensor> tensors() const;
};

}  // namespace loom::nn
