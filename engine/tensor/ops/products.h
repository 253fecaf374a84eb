// Matrix products inside operators. Private to engine/tensor.
#pragma once

#include <string_view>

#include "engine/kernels/gemm.h"
#include "engine/tensor/ops/support.h"

namespace loom::ops {

// Of `batch` products of these dims.
inline Cost gemm_cost(const kernels::Gemm& op, std::int64_t batch, const Tensor& a, const Tensor& b, const Tensor& c) {
  Cost cost = pass_cost(2.0 * static_cast<double>(batch) * static_cast<double>(op.m) * static_cast<double>(op.n) *
                            static_cast<double>(op.k),
                        {a, b}, {c});
  cost.unit = device::Unit::kMatrix;
  cost.dtype = b.dtype();
  cost.batch = batch;
  cost.m = op.m;
  cost.n = op.n;
  cost.k = op.k;
  return cost;
}

// c = a b as described by `op`; the dtypes are the tensors'.
inline void multiply(std::string_view name, kernels::Gemm op, const Tensor& a, const Tensor& b, const Tensor& c) {
  op.ab = a.dtype();
  op.c = c.dtype();
  launch(name, gemm_cost(op, 1, a, b, c), [&] { kernels::gemm(op, a.raw(), b.raw(), c.raw()); });
}

}  // namespace loom::ops
