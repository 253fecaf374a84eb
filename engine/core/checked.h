// Products that may not fit: sizes of a user's file times one another.
#pragma once

#include <cstdint>
#include <optional>

namespace loom {

// a * b; nothing when 64 bits do not hold it.
inline std::optional<std::int64_t> checked_multiply(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

}  // namespace loom
