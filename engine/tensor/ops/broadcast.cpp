#include "engine/tensor/ops/broadcast.h"

#include <algorithm>

#include "engine/core/shape_text.h"
#include "engine/tensor/ops/general.h"
#include "engine/tensor/ops/support.h"

namespace loom::ops {
namespace {

// Size of dim d of a result with `ndim` dims, as an operand has it.
std::int64_t aligned_size(const Shape& shape, int ndim, int d) {
  const int own = d - (ndim - shape.ndim());
  return own < 0 ? 1 : shape[own];
}

std::vector<std::int64_t> strides_in(const Shape& operand, const Shape& result) {
  std::vector<std::int64_t> strides(static_cast<std::size_t>(result.ndim()));
  std::int64_t stride = 1;
  for (int d = result.ndim() - 1; d >= 0; --d) {
    const std::int64_t size = aligned_size(operand, result.ndim(), d);
    strides[static_cast<std::size_t>(d)] = size == 1 ? 0 : stride;
    stride *= size;
  }
  return strides;
}

Tensor summed_over(const Tensor& x, int dim, DType to) {
  const AroundDim a = around(x.shape(), dim);
  Shape shape = x.shape();
  shape[dim] = 1;
  Tensor y = Tensor::empty(shape, to);
  launch("sum_dim", pass_cost(static_cast<double>(x.numel()), {x}, {y}), [&] {
    kernels::sum_dim({x.dtype(), to, a.outer, a.size, a.inner, 1}, x.raw(), y.raw());
  });
  return y;
}

}  // namespace

AroundDim around(const Shape& shape, int dim) {
  AroundDim a;
  for (int d = 0; d < shape.ndim(); ++d) (d < dim ? a.outer : d == dim ? a.size : a.inner) *= shape[d];
  return a;
}

std::optional<Shape> broadcast_shape(const Shape& a, const Shape& b) {
  const int ndim = std::max(a.ndim(), b.ndim());
  std::vector<std::int64_t> sizes;
  for (int d = 0; d < ndim; ++d) {
    const std::int64_t of_a = aligned_size(a, ndim, d), of_b = aligned_size(b, ndim, d);
    if (of_a != of_b && of_a != 1 && of_b != 1) return std::nullopt;
    sizes.push_back(of_a == 1 ? of_b : of_a);
  }
  return Shape(sizes);
}

Shape check_broadcast(std::string_view op, const Tensor& a, const Tensor& b) {
  const std::optional<Shape> shape = broadcast_shape(a.shape(), b.shape());
  check_model(shapes_hold(a.dtype() == b.dtype() && shape.has_value(), op, {a, b}),
              "{}: {} {} with {} {}; aligned at the last dim, sizes need to be equal or 1, in the same dtype", op,
              name(a.dtype()), a.shape(), name(b.dtype()), b.shape());
  return *shape;
}

Tensor broadcast_binary(std::string_view kernel, kernels::BinaryOp op, const Tensor& a, const Tensor& b) {
  const Shape shape = broadcast_shape(a.shape(), b.shape()).value();
  Tensor y = Tensor::empty(shape, a.dtype());
  launch(kernel, pass_cost(static_cast<double>(y.numel()), {a, b}, {y}), [&] {
    kernels::binary(op, a.dtype(), {shape.sizes(), strides_in(a.shape(), shape), strides_in(b.shape(), shape)}, a.raw(),
                    b.raw(), y.raw());
  });
  return y;
}

Tensor sum_repeated(const Tensor& grad, const Shape& shape) {
  if (grad.shape() == shape) return grad;
  std::vector<int> repeated;
  const int ndim = grad.shape().ndim();
  for (int d = 0; d < ndim; ++d) {
    if (aligned_size(shape, ndim, d) == 1 && grad.shape()[d] != 1) repeated.push_back(d);
  }
  Tensor sum = grad;
  for (std::size_t i = 0; i < repeated.size(); ++i) {
    const bool last = i + 1 == repeated.size();
    sum = summed_over(sum, repeated[i], last ? grad.dtype() : accumulation_dtype(grad.dtype()));
  }
  return sum.view(shape);
}

}  // namespace loom::ops
