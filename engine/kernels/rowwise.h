// Row-wise pieces of the composed operators: sums, softmax, log-softmax, negative log-likelihood. Each is one of
// PyTorch's passes.
//
// Letters   rows x cols, row-major; "statistics" is fp32 (fp64 for fp64).
// dtypes    every tensor argument has `dtype` (fp32, bf16, fp16, fp64) unless noted otherwise; arithmetic
//           in statistics, rounded once.
// Threads   cut into tiles of rows by shape alone.
#pragma once

#include <cstdint>

#include "engine/core/dtype.h"
#include "engine/kernels/fused.h"

namespace loom::kernels {

// out[r] = factor * sum(x[r]); out [rows] in `out_dtype`, which is `dtype` or statistics.
void row_sum(DType dtype, DType out_dtype, std::int64_t rows, std::int64_t cols, double factor, const void* x,
             void* out);
// y[r, :] = factor * x[r]; x [rows] in statistics.
void row_fill(DType dtype, std::int64_t rows, std::int64_t cols, double factor, const void* x, void* y);

// y = softmax of each row. Backward: dx = (dy - sum(dy * y)) * y. y and dy are in `y_dtype`, statistics or `dtype`;
// x and dx in `dtype`.
void softmax_forward(DType dtype, DType y_dtype, std::int64_t rows, std::int64_t cols, const void* x, void* y);
void softmax_backward(DType dtype, DType y_dtype, std::int64_t rows, std::int64_t cols, const void* y, const void* dy,
                      void* dx);

// y = x - log(sum(exp(x))) of each row. Backward: dx = dy - exp(y) * sum(dy).
void log_softmax_forward(DType dtype, std::int64_t rows, std::int64_t cols, const void* x, void* y);
void log_softmax_backward(DType dtype, std::int64_t rows, std::int64_t cols, const void* y, const void* dy, void* dx);

// y[r] = log(sum(exp(x[r]))), y [rows] in statistics. Backward: dx = exp(x - y) * dy with y and dy in statistics.
void log_sum_exp_forward(DType dtype, std::int64_t rows, std::int64_t cols, const void* x, void* y);
void log_sum_exp_backward(DType dtype, std::int64_t rows, std::int64_t cols, const void* x, const void* y,
                          const void* dy, void* dx);

// log_probs [rows, vocab]: sum of -log_probs[r, targets[r]] over the rows that count, in row order in double. Backward
// writes -row_scale there and 0 elsewhere. Targets int32/int64; ConfigError for one outside [0, vocab).
CrossEntropySum nll_forward(const CrossEntropy& op, const void* log_probs, const void* targets);
void nll_backward(const CrossEntropy& op, const void* targets, double row_scale, void* dlog_probs);

}  // namespace loom::kernels
