// Whole-number division that rounds up. Precondition: values are at least 0, units at least 1.
#pragma once

#include <concepts>

namespace loom {

template <std::integral Integer>
constexpr Integer ceil_div(Integer value, Integer unit) {
  return (value + unit - 1) / unit;
}

// The next multiple of `unit`, or `value` where it is one.
template <std::integral Integer>
constexpr Integer round_up(Integer value, Integer unit) {
  return ceil_div(value, unit) * unit;
}

}  // namespace loom
