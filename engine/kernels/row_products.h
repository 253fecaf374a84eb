// Products of a few rows with a matrix, which read the matrix once: Y[M,N] = X[M,K] . op(W)[K,N] (+ bias).
//
// Storage  transposed: W is stored [N,K] (torch.nn.Linear), else [K,N] (GPT-2's Conv1D). All dense.
// dtypes   X, W, bias and Y share `dtype`: fp32, bf16 or fp16. Sums are fp32, rounded once.
// Bits     of a row do not depend on the other rows or on the number of threads. They differ from the bits of gemm(),
//          which sums in another order.
// Threads  cut into columns by shape alone, run through parallel_for.
#pragma once

#include <cstdint>

#include "engine/core/dtype.h"

namespace loom::kernels {

// More rows are gemm()'s: it packs the matrix.
inline constexpr std::int64_t kMostProductRows = 16;

struct RowProducts {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool transposed = true;
  DType dtype = DType::kF32;
  const void* bias = nullptr;  // [N], or null
};

// True for what multiply_rows() takes.
bool are_few_rows(std::int64_t m, DType dtype);
// InvariantError for unsupported operands.
void multiply_rows(const RowProducts& op, const void* x, const void* w, void* y);

}  // namespace loom::kernels
