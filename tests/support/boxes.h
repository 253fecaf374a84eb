// Boxes of whole arrays, for tests that compare parts with the whole.
#pragma once

#include <vector>

#include "engine/core/box.h"
#include "engine/nn/module.h"

namespace loom::test {

// The elements of a box of `whole`, found index by index.
template <class T>
std::vector<T> box_of(const std::vector<T>& whole, const Shape& shape, const Offset& offset, const Shape& box) {
  std::vector<T> found;
  for (std::int64_t i = 0; i < box.numel(); ++i) {
    std::int64_t rest = i, element = 0, stride = 1;
    for (int d = shape.ndim() - 1; d >= 0; --d) {
      element += (offset[static_cast<std::size_t>(d)] + rest % box[d]) * stride;
      rest /= box[d];
      stride *= shape[d];
    }
    found.push_back(whole[static_cast<std::size_t>(element)]);
  }
  return found;
}

// The slot holds this box of its parameter from now on, with undefined values.
inline void give_box(nn::ParamSlot& slot, const Offset& offset, const Shape& box, DType dtype = DType::kF32) {
  slot.shard.offset = offset;
  slot.value = Tensor::empty(box, dtype).set_requires_grad(true);
}

}  // namespace loom::test
