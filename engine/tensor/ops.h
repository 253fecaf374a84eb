// Operators on tensors: shape rule, cost and arithmetic of each, recorded on the tape. The fused grain; ops_composed.h
// has the composed one.
//
// Letters  B batch, S sequence, H query heads, G key/value heads, D head dim, V vocabulary, rows: all dims but the
//          last.
// Places   inputs and results live on the current rank's device; token ids and targets (int32/int64) may be host
//          tensors.
// dtypes   all floating inputs of one operator share a dtype, which the result has, unless it is said otherwise.
// Errors   InvariantError naming operator and shapes for shapes or dtypes that do not fit; ConfigError for token ids
//          out of range.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/tensor/tensor.h"

namespace loom::ops {

// x [..., K] . weight [N, K]^T + bias [N] -> [..., N]; bias may be undefined.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});
// x [..., K] . weight [K, N] + bias [N] -> [..., N]: GPT-2's Conv1D.
Tensor linear_kn(const Tensor& x, const Tensor& weight, const Tensor& bias);
// Rows of table [V, dim]: ids [...] -> [..., dim].
Tensor embedding(const Tensor& ids, const Tensor& table);

// Same shapes; or b [dim...] is a suffix of a's shape (row broadcast).
Tensor add(const Tensor& a, const Tensor& b);
Tensor scale(const Tensor& x, double factor);
Tensor tanh(const Tensor& x);
Tensor cast(const Tensor& x, DType dtype);  // x itself when it has that dtype
Tensor reshape(const Tensor& x, const Shape& shape);
// The last dim cut into parts of the given sizes.
std::vector<Tensor> split_last(const Tensor& x, const std::vector<std::int64_t>& sizes);
// Mean of all elements, fp32 (fp64) scalar.
Tensor mean(const Tensor& x);

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps);
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps);
Tensor swiglu(const Tensor& gate, const Tensor& up);
enum class Gelu : std::uint8_t { kTanh, kErf };
Tensor gelu(const Tensor& x, Gelu form);

// x [B,S,H,D]; cos, sin [S,D] of any floating dtype, without gradient.
Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin);
// q [B,S,H,D]; k, v [B,S,G,D] -> [B,S,H,D]. Keeps q, k, v, out and one fp32 per row and head.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale, bool causal = true);

// Mean over the rows whose target is not ignore_index; logits [..., V], targets [...] -> fp32 (fp64) scalar. 0 when no
// row counts. Backward writes the gradient over the logits when nobody else holds them.
inline constexpr std::int64_t kIgnoreIndex = -100;
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index = kIgnoreIndex);

}  // namespace loom::ops
