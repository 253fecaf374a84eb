// Element-wise and row-wise loops for operators whose arithmetic is one expression. Private to engine/tensor.
#pragma once

#include "engine/kernels/dispatch.h"
#include "engine/kernels/tiles.h"
#include "engine/tensor/ops/support.h"

namespace loom::ops {

// y[i] = op(x[i], more[i]...): op works on packs of fp32 (doubles for fp64), the result is rounded once to x's dtype.
template <class Op, class... More>
Tensor map_elements(std::string_view kernel, double flops_per_elem, Op op, const Tensor& x, const More&... more) {
  Tensor y = Tensor::empty(x.shape(), x.dtype());
  launch(kernel, pass_cost(flops_per_elem * static_cast<double>(x.numel()), {x, more...}, {y}), [&] {
    kernels::visit_float_dtype(kernel, x.dtype(), [&]<class T>() {
      kernels::map<kernels::simd::Pack<T>>(x.numel(), y.data<T>(), op, static_cast<const T*>(x.data<T>()),
                                           static_cast<const T*>(more.template data<T>())...);
    });
  });
  return y;
}

// Calls body(row) for rows of `cols` elements, tiles of rows at once.
template <class Body>
void for_rows(std::int64_t rows, std::int64_t cols, Body&& body) {
  kernels::for_pieces(rows, kernels::rows_of_tile(cols), [&](std::int64_t begin, std::int64_t count) {
    for (std::int64_t row = begin; row < begin + count; ++row) body(row);
  });
}

}  // namespace loom::ops
