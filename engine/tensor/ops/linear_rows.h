// The pieces of a layer's product, unrecorded: for operators that compute it for some rows at a time.
//
// Letters  x [..., K] is read as [rows, K]; y [..., N] likewise.
// Bits     of the products of some rows are those of the product of all of them (kernels/gemm.h).
// Errors   InvariantError for ranges of different numbers of rows.
// Threads  the rank's host thread.
#pragma once

#include <cstdint>

#include "engine/tensor/tensor.h"

namespace loom::ops {

struct LinearMatrix {
  Tensor weight;       // [N, K]; [K, N] unless out_in
  bool out_in = true;  // torch.nn.Linear's; else Conv1D's
  Tensor bias = {};    // [N] or undefined
};

// `count` ranges of `rows` rows each; one begins `stride` rows after the other.
struct RowRanges {
  std::int64_t begin = 0;
  std::int64_t rows = 0;
  std::int64_t count = 1;
  std::int64_t stride = 0;

  std::int64_t row_of(std::int64_t i) const { return begin + i * stride; }
  bool are_one() const { return count == 1 || stride == rows; }
};

// ops::linear(): the rows `to` of y from the rows `from` of x.
void linear_of_rows(const Tensor& x, const RowRanges& from, const LinearMatrix& matrix, const Tensor& y,
                    const RowRanges& to);
// Its gradient of x: the rows `to` of dx from the rows `from` of dy.
void linear_dx_of_rows(const Tensor& dy, const RowRanges& from, const LinearMatrix& matrix, const Tensor& dx,
                       const RowRanges& to);
// The rows `to` of y += those of x.
void add_rows(const Tensor& x, const RowRanges& from, const Tensor& y, const RowRanges& to);

// The gradients of weight and bias, of all rows.
Tensor linear_dw(const Tensor& x, const Tensor& dy, bool out_in);
Tensor bias_gradient(const Tensor& dy);

}  // namespace loom::ops
