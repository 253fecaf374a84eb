#include "engine/core/shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace loom {

std::int64_t Shape::numel() const {
  std::int64_t product = 1;
  for (std::int64_t size : sizes_) product *= size;
  return product;
}

std::int64_t Shape::row_elems() const {
  std::int64_t product = 1;
  for (std::size_t d = 1; d < sizes_.size(); ++d) product *= sizes_[d];
  return product;
}

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape.sizes(), ", ")); }

}  // namespace loom
