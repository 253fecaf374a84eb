// What a block of memory is for: a place among kMemCategories, a name for people, and the lifetime of its blocks.
//
// The device names the categories that every program has. Rooms that allocate for other purposes name theirs as values
// (sharding/memory.h); a place has one name.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/device/life_class.h"

namespace loom::device {

inline constexpr std::size_t kMemCategories = 8;

class MemCategory {
 public:
  static const MemCategory kParameter;  // of a module, whole
  static const MemCategory kGradient;   // of parameters
  static const MemCategory kOptimizerState;
  static const MemCategory kActivation;  // outputs of operators, their gradients, inputs
  static const MemCategory kTemporary;   // workspace inside an operator

  // `place` is below kMemCategories; `name` is a literal, as in metrics.jsonl.
  constexpr MemCategory(std::uint8_t place, std::string_view name, LifeClass life)
      : name_(name), place_(place), life_(life) {}

  constexpr std::size_t place() const { return place_; }
  constexpr std::string_view name() const { return name_; }
  constexpr LifeClass life() const { return life_; }
  friend constexpr bool operator==(MemCategory a, MemCategory b) { return a.place_ == b.place_; }
  friend constexpr auto operator<=>(MemCategory a, MemCategory b) { return a.place_ <=> b.place_; }

 private:
  std::string_view name_;
  std::uint8_t place_;
  LifeClass life_;
};

inline constexpr MemCategory MemCategory::kParameter{2, "unsharded", LifeClass::kCommunication};
inline constexpr MemCategory MemCategory::kGradient{3, "gradient", LifeClass::kStep};
inline constexpr MemCategory MemCategory::kOptimizerState{5, "optimizer_state", LifeClass::kStatic};
inline constexpr MemCategory MemCategory::kActivation{6, "activation", LifeClass::kActivation};
inline constexpr MemCategory MemCategory::kTemporary{7, "temporary", LifeClass::kTemporary};

// Bytes by category.
class CategoryBytes {
 public:
  std::int64_t& operator[](MemCategory category) { return bytes_[category.place()]; }
  std::int64_t operator[](MemCategory category) const { return bytes_[category.place()]; }
  // Each to the larger of the two.
  void raise_to(const CategoryBytes& other) {
    for (std::size_t i = 0; i < kMemCategories; ++i) bytes_[i] = std::max(bytes_[i], other.bytes_[i]);
  }
  auto begin() const { return bytes_.begin(); }  // by place
  auto end() const { return bytes_.end(); }
  friend bool operator==(const CategoryBytes&, const CategoryBytes&) = default;

 private:
  std::array<std::int64_t, kMemCategories> bytes_{};
};

}  // namespace loom::device
