#include "engine/nn/value.h"

#include <array>
#include <fmt/format.h>

#include "engine/core/error.h"

namespace loom::nn {

template <class T>
const T& Value::get(std::string_view wanted) const {
  static constexpr std::array<std::string_view, 8> kHeld{"none",     "a tensor", "a flag", "an integer",
                                                         "a number", "a text",   "a list", "a dict"};
  const T* held = std::get_if<T>(&held_);
  check_model(held != nullptr, "a value is {} where {} is expected; give {}, or read it as its own type",
              kHeld[held_.index()], wanted, wanted);
  return *held;
}

const Tensor& Value::tensor() const { return get<Tensor>("a tensor"); }
const ValueList& Value::list() const { return get<ValueList>("a list"); }
const ValueDict& Value::dict() const { return get<ValueDict>("a dict"); }
bool Value::flag() const { return get<bool>("a flag"); }
std::int64_t Value::number() const { return get<std::int64_t>("an integer"); }

const Value& Value::operator[](std::string_view key) const {
  std::vector<std::string_view> keys;
  for (const auto& [name, value] : dict()) {
    if (name == key) return value;
    keys.push_back(name);
  }
  model_error("a dict has no '{}'; it has {}", key,
              keys.empty() ? "nothing" : fmt::format("{}", fmt::join(keys, ", ")));
}

Value Value::map_tensors(const std::function<Tensor(const Tensor&)>& f) const {
  if (const auto* tensor = std::get_if<Tensor>(&held_)) return tensor->defined() ? f(*tensor) : *tensor;
  if (const auto* list = std::get_if<ValueList>(&held_)) {
    ValueList mapped;
    for (const Value& value : *list) mapped.push_back(value.map_tensors(f));
    return mapped;
  }
  if (const auto* dict = std::get_if<ValueDict>(&held_)) {
    ValueDict mapped;
    for (const auto& [key, value] : *dict) mapped.emplace_back(key, value.map_tensors(f));
    return mapped;
  }
  return *this;
}

void Value::collect_tensors(std::vector<Tensor>& tensors) const {
  map_tensors([&](const Tensor& tensor) {
    tensors.push_back(tensor);
    return tensor;
  });
}

const Tensor& Args::tensor(std::size_t i) const {
  check_model(
      i < positional.size(),
      "argument {} (counted from 0) of a call with {} arguments; give it by position where the module is called", i,
      positional.size());
  return positional[i].tensor();
}

const Value& Args::find(std::string_view name) const {
  static const Value kNone;
  for (const auto& [key, value] : named) {
    if (key == name) return value;
  }
  return kNone;
}

void Args::map_tensors(const std::function<Tensor(const Tensor&)>& f) {
  for (Value& value : positional) value = value.map_tensors(f);
  for (auto& [key, value] : named) value = value.map_tensors(f);
}

std::vector<Tensor> Args::tensors() const {
  std::vector<Tensor> found;
  for (const Value& value : positional) value.collect_tensors(found);
  for (const auto& [key, value] : named) value.collect_tensors(found);
  return found;
}

}  // namespace loom::nn
