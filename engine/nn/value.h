// Value: what goes into and comes out of a module's forward - a tensor, or a list or dict of values, or a plain number,
// flag or text.
//
// Wrappers (sharding, recompute) walk values without knowing the model: map_tensors() reaches every tensor in nested
// containers. Args: positional and named arguments of one call.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/tensor/tensor.h"

namespace loom::nn {

class Value;
using ValueList = std::vector<Value>;
using ValueDict = std::vector<std::pair<std::string, Value>>;  // in insertion order

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

  bool is_none() const { return std::holds_alternative<std::monostate>(held_); }
  bool is_tensor() const { return std::holds_alternative<Tensor>(held_); }
  // Throw InvariantError saying what is held instead.
  const Tensor& tensor() const;
  const ValueList& list() const;
  const ValueDict& dict() const;
  bool flag() const;
  std::int64_t number() const;
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

struct Args {
  ValueList positional;
  ValueDict named;

  // Positional argument i as a tensor. Throws InvariantError when there are fewer.
  const Tensor& tensor(std::size_t i) const;
  // A named argument, or none.
  const Value& find(std::string_view name) const;

  void map_tensors(const std::function<Tensor(const Tensor&)>& f);
  std::vector<Tensor> tensors() const;
};

}  // namespace loom::nn
