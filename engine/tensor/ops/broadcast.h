// Broadcasting of element-wise operators. Private to engine/tensor.
#pragma once

#include <optional>
#include <string_view>

#include "engine/kernels/strided.h"
#include "engine/tensor/tensor.h"

namespace loom::ops {

// A shape seen from one of its dims: [outer, size, inner].
struct AroundDim {
  std::int64_t outer = 1, size = 1, inner = 1;
};
AroundDim around(const Shape& shape, int dim);

// The shape of the result; nothing when the shapes do not go together.
std::optional<Shape> broadcast_shape(const Shape& a, const Shape& b);
// ModelError unless both have one dtype and shapes that broadcast. Returns the result's shape.
Shape check_broadcast(std::string_view op, const Tensor& a, const Tensor& b);
// a op b, unrecorded.
Tensor broadcast_binary(std::string_view kernel, kernels::BinaryOp op, const Tensor& a, const Tensor& b);
// The gradient of an operand of `shape`: `grad` summed over the dims that were repeated; `grad` itself when none was.
Tensor sum_repeated(const Tensor& grad, const Shape& shape);

}  // namespace loom::ops
