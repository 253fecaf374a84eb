#include "engine/core/shape.h"

#include <fmt/format.h>
#include <span>

#include "engine/core/checked.h"
#include "engine/core/error.h"
#include "engine/core/shape_text.h"

namespace loom {
namespace {

std::int64_t product(std::span<const std::int64_t> sizes, const Shape& shape) {
  std::int64_t product = 1;
  bool fits = true;
  for (const std::int64_t size : sizes) {
    if (size == 0) return 0;
    const auto next = checked_multiply(product, size);
    fits = fits && next;
    product = next.value_or(1);
  }
  check_model(fits, "a tensor of shape {} has more elements than 64 bits can count; use smaller sizes", shape);
  return product;
}

}  // namespace

std::int64_t Shape::numel() const { return product(sizes_, *this); }

std::int64_t Shape::row_elems() const { return product(std::span(sizes_).subspan(sizes_.empty() ? 0 : 1), *this); }

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape.sizes(), ", ")); }

}  // namespace loom
