#include "engine/tensor/ops/orthogonalize.h"

#include <algorithm>
#include <cmath>

#include "engine/core/shape_text.h"
#include "engine/kernels/fused.h"
#include "engine/kernels/momentum.h"
#include "engine/tensor/ops/products.h"

namespace loom::ops {
namespace {

// Matrices while an iteration runs. `square` and `product` have the smaller side.
struct Work {
  Tensor next;
  Tensor square;   // S
  Tensor product;  // S S, then the term added to a X; fp32 beside bf16, else of X's dtype
};

// out = a x + b y.
void combine(double a, const Tensor& x, double b, const Tensor& y, const Tensor& out) {
  const kernels::WeightedSum op{.dtype = x.dtype(), .y_dtype = y.dtype(), .elems = x.numel(), .a = a, .b = b};
  launch("weighted_sum", pass_cost(3.0 * static_cast<double>(x.numel()), {x, y}, {out}),
         [&] { kernels::weighted_sum(op, x.raw(), y.raw(), out.raw()); });
}

void normalize(const Tensor& x, double eps) {
  const auto elems = static_cast<double>(x.numel());
  launch("normalize", pass_cost(3.0 * elems, {x, x}, {x}), [&] {
    const double norm = std::sqrt(kernels::sum_of_squares(x.dtype(), x.numel(), x.raw()));
    kernels::weighted_sum({.dtype = x.dtype(), .y_dtype = x.dtype(), .elems = x.numel(), .a = 1 / std::max(norm, eps)},
                          x.raw(), x.raw(), x.raw());
  });
}

void iterate(const Tensor& x, const std::array<double, 3>& triple, const Work& work) {
  const std::int64_t rows = x.shape()[0], columns = x.shape()[1], small = std::min(rows, columns);
  const bool is_wide = rows <= columns;
  multiply("matmul",
           {.m = small, .n = small, .k = std::max(rows, columns), .transpose_a = !is_wide, .transpose_b = is_wide}, x,
           x, work.square);
  multiply("matmul", {.m = small, .n = small, .k = small}, work.square, work.square, work.product);
  combine(triple[1], work.square, triple[2], work.product, work.square);
  multiply("matmul", {.m = rows, .n = columns, .k = small}, is_wide ? work.square : x, is_wide ? x : work.square,
           work.next);
  combine(triple[0], x, 1, work.next, x);
}

// In place.
void orthogonalize(const Tensor& x, const NewtonSchulz& options) {
  if (x.numel() == 0) return;
  const std::int64_t small = std::min(x.shape()[0], x.shape()[1]);
  const DType wide = x.dtype() == DType::kBF16 ? DType::kF32 : x.dtype();
  const auto temporary = [](const Shape& shape, DType dtype) {
    return Tensor::empty(shape, dtype, device::MemCategory::kTemporary, "Newton-Schulz iteration");
  };
  const Work work{temporary(x.shape(), wide), temporary({small, small}, x.dtype()), temporary({small, small}, wide)};
  normalize(x, options.eps);
  for (const auto& triple : options.coefficients) iterate(x, triple, work);
}

}  // namespace

NewtonSchulz newton_schulz(int steps) {
  return {.coefficients = {static_cast<std::size_t>(steps), {3.4445, -4.7750, 2.0315}}};
}

Tensor orthogonalized(const Tensor& x, const NewtonSchulz& options) {
  const bool is_float = x.dtype() == DType::kBF16 || x.dtype() == DType::kF32 || x.dtype() == DType::kF64;
  check_model(is_float && (x.shape().ndim() == 2 || x.shape().ndim() == 3),
              "orthogonalized: {} {}; a matrix, or a stack of matrices, in bf16, fp32 or fp64 is needed",
              name(x.dtype()), x.shape());
  const Tensor inputs[] = {x};
  check_model(!autograd::will_record(inputs), "orthogonalized: nothing is recorded for backward; call it under NoGrad");
  const Tensor result = Tensor::empty(x.shape(), x.dtype(), device::MemCategory::kTemporary, "orthogonalized");
  launch("copy", pass_cost(0, {x}, {result}), [&] {
    kernels::weighted_sum({.dtype = x.dtype(), .y_dtype = x.dtype(), .elems = x.numel(), .a = 1}, x.raw(), x.raw(),
                          result.raw());
  });
  if (x.shape().ndim() == 2) {
    orthogonalize(result, options);
    return result;
  }
  const Shape matrix{x.shape()[1], x.shape()[2]};
  for (std::int64_t i = 0; i < x.shape()[0]; ++i) {
    orthogonalize({result.storage(), i * matrix.numel(), matrix, x.dtype()}, options);
  }
  return result;
}

}  // namespace loom::ops
