// Products that may overflow: sizes from a user's file multiplied by one another.
#pragma once

#include <cstdint>
#include <optional>

namespace loom {

// a * b; nothing when it does not fit into 64 bits.
inline std::optional<std::int64_t> checked_multiply(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

}  // namespace loom
