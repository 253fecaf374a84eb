#include "engine/core/box.h"

#include <fmt/format.h>

#include "engine/core/error.h"

namespace loom {

bool box_fits(const Shape& whole, const Offset& offset, const Shape& shape) {
  if (shape.ndim() != whole.ndim() || static_cast<int>(offset.size()) != whole.ndim()) return false;
  for (int d = 0; d < whole.ndim(); ++d) {
    const std::int64_t begin = offset[static_cast<std::size_t>(d)];
    if (begin < 0 || shape[d] < 0 || begin > whole[d] || shape[d] > whole[d] - begin) return false;
  }
  return true;
}

BoxRuns::BoxRuns(const Shape& whole, const Offset& offset, const Shape& shape) {
  require(box_fits(whole, offset, shape), "a box {} of an array {}", describe_box(offset, shape), to_string(whole));
  std::int64_t stride = 1;
  bool whole_so_far = true;  // every dim further in is taken whole: this one lengthens the runs
  for (int d = whole.ndim() - 1; d >= 0; --d) {
    first_ += offset[static_cast<std::size_t>(d)] * stride;
    if (whole_so_far) {
      elems_ *= shape[d];
      whole_so_far = shape[d] == whole[d];
    } else {
      outer_.push_back({shape[d], stride});
      count_ *= shape[d];
    }
    stride *= whole[d];
  }
  if (elems_ == 0) count_ = 0;
}

std::int64_t BoxRuns::begin(std::int64_t i) const {
  std::int64_t element = first_;
  for (const auto& [size, stride] : outer_) {
    element += i % size * stride;
    i /= size;
  }
  return element;
}

std::string describe_box(const Offset& offset, const Shape& shape) {
  return fmt::format("{} at ({})", to_string(shape), fmt::join(offset, ", "));
}

}  // namespace loom
