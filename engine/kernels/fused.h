// Fused element-wise and row-wise kernels: one pass over memory each.
//
// dtypes    every tensor argument has `dtype` (fp32, bf16, fp16, fp64) unless noted otherwise; statistics
//           and arithmetic are fp32 (fp64 for fp64). Results are rounded once.
// Threads   cut into tiles by shape alone; partial sums over rows (weight gradients) are combined in tile order.
// Aliasing  outputs may not overlap inputs, unless noted otherwise.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/core/dtype.h"

namespace loom::kernels {

// Norms over the last dim of [rows, dim].
struct Norm {
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t dim = 0;
  double eps = 0;  // of the forward
  // In a backward, [rows, dim]: dx, rounded, is added to it instead of written; the same bits as a later addition.
  void* add_dx_to = nullptr;
};

// RMSNorm: y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps). rstd: fp32 [rows] (fp64 for fp64). The gradient of
// weight is accumulated in fp32 and written in `dtype`.
void rms_norm_forward(const Norm& op, const void* x, const void* weight, void* y, void* rstd);
void rms_norm_backward(const Norm& op, const void* x, const void* weight, const void* rstd, const void* dy, void* dx,
                       void* dweight);

// LayerNorm: y = (x - mean) * rstd * weight + bias. mean, rstd: fp32 [rows] (fp64 for fp64).
struct LayerNormGradients {
  void* dx = nullptr;
  void* dweight = nullptr;
  void* dbias = nullptr;
};
void layer_norm_forward(const Norm& op, const void* x, const void* weight, const void* bias, void* y, void* mean,
                        void* rstd);
void layer_norm_backward(const Norm& op, const void* x, const void* weight, const void* mean, const void* rstd,
                         const void* dy, const LayerNormGradients& gradients);

// SwiGLU: y = silu(gate) * up, silu(z) = z / (1 + exp(-z)). Element-wise over `elems`.
void swiglu_forward(DType dtype, std::int64_t elems, const void* gate, const void* up, void* y);
void swiglu_backward(DType dtype, std::int64_t elems, const void* gate, const void* up, const void* dy, void* dgate,
                     void* dup);

// GELU, tanh form ("gelu_new"): y = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); exact form with erf.
enum class GeluForm { kTanh, kErf };
void gelu_forward(DType dtype, GeluForm form, std::int64_t elems, const void* x, void* y);
void gelu_backward(DType dtype, GeluForm form, std::int64_t elems, const void* x, const void* dy, void* dx);

// Rotary position embedding on x [B,S,H,D] with cos, sin [S,D] in `table_dtype` (Hugging Face layout: halves
// duplicated): y = x * cos + rotate_half(x) * sin. `backward` applies the transpose. y may be x.
struct Rope {
  DType dtype = DType::kF32;
  DType table_dtype = DType::kF32;
  bool backward = false;
  std::int64_t batch = 0;
  std::int64_t seq = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
};
void rope(const Rope& op, const void* x, const void* cos, const void* sin, void* y);

// Cross-entropy of logits [rows, vocab] against targets int32/int64 [rows]; rows whose target is `ignore_index` count
// nothing. Forward writes log_sum_exp (fp32 [rows], fp64 for fp64) and returns the sum of the rows' losses and their
// count, summed in tile order in double. Backward writes dlogits = (softmax - onehot) * row_scale in one pass; dlogits
// may be logits. Targets outside [0, vocab) raise ConfigError.
struct CrossEntropy {
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t vocab = 0;
  DType target_dtype = DType::kI64;
  std::int64_t ignore_index = -100;
};
struct CrossEntropySum {
  double loss = 0;
  std::int64_t rows = 0;
};
CrossEntropySum cross_entropy_forward(const CrossEntropy& op, const void* logits, const void* targets,
                                      void* log_sum_exp);
void cross_entropy_backward(const CrossEntropy& op, const void* logits, const void* targets, const void* log_sum_exp,
                            double row_scale, void* dlogits);

// AdamW with decoupled weight decay, as torch.optim.AdamW: one pass reading weight, grad, m, v and writing weight, m,
// v.
//   weight *= 1 - lr * weight_decay;  m = lerp(m, g, 1 - beta1);  v = beta2 v + (1 - beta2) g^2
//   weight -= lr / bias1 * m / (sqrt(v) / sqrt(bias2) + eps)       with bias_i = 1 - beta_i^step
// weight, m, v [elems] in `dtype`: fp32, fp64, or bf16, computed in fp32 and rounded once each, as with fused=True;
// grad [elems] in `grad_dtype`. `grad_scale` multiplies the gradient first (clipping).
struct AdamW {
  DType dtype = DType::kF32;
  DType grad_dtype = DType::kF32;
  std::int64_t elems = 0;
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  double grad_scale = 1.0;
  std::int64_t step = 1;  // counted from 1
};
void adamw(const AdamW& op, void* weight, const void* grad, void* m, void* v);

// Element-wise helpers at memory speed. y may be x (or a).
void cast(std::int64_t elems, DType from, const void* x, DType to, void* y);         // any pair of dtypes
void add(DType dtype, std::int64_t elems, const void* a, const void* b, void* y);    // y = a + b
void scale(DType dtype, std::int64_t elems, double factor, const void* x, void* y);  // y = factor * x
void axpy(DType dtype, std::int64_t elems, double factor, const void* x, void* y);   // y += factor * x
// Sum of squares, in double, in tile order.
double sum_of_squares(DType dtype, std::int64_t elems, const void* x);
// Column sums of dy [rows, cols] (bias gradients), accumulated in fp32 (fp64) in tile order: out [cols] in `dtype`.
void column_sum(DType dtype, std::int64_t rows, std::int64_t cols, const void* dy, void* out);

// Rows of table [vocab, dim] by id (int32/int64): out [count, dim]. Ids outside [0, vocab) raise ConfigError naming id
// and vocab. A table of `rows` rows has those of the ids [first, first + rows): other ids give zeros, and no gradient.
struct Embedding {
  DType dtype = DType::kF32;
  std::int64_t count = 0;
  std::int64_t vocab = 0;
  std::int64_t dim = 0;
  DType id_dtype = DType::kI64;
  bool rounds_each_sum = false;  // of a backward: the sum is rounded after each row, as PyTorch's operator on CPUs does
  std::int64_t first = 0;
  std::optional<std::int64_t> rows = {};  // all of the vocabulary

  std::int64_t table_rows() const { return rows.value_or(vocab); }
};
void embedding_forward(const Embedding& op, const void* ids, const void* table, void* out);
// dtable, in the shape of the table, = 0, then rows added in id order, accumulated in fp32 (fp64), rounded once without
// rounds_each_sum.
void embedding_backward(const Embedding& op, const void* ids, const void* dout, void* dtable);

}  // namespace loom::kernels
