// --kernels pytorch: operators composed of eager pieces, with PyTorch's intermediates, saved tensors and roundings.
//
// Each function has the result of its fused counterpart in ops.h up to rounding. Shapes, places and errors as there. In
// 16-bit dtypes the roundings between the pieces are as in Hugging Face's eager code: RMSNorm squares, averages and
// scales in fp32, rounds to the input's dtype, then multiplies by the weight; RoPE multiplies and adds in the tensor's
// dtype with tables rounded to it; attention repeats key/value heads, scales after Q.K^T, adds the mask, softmax in
// fp32 rounded back, then P.V; SiLU and the product round apart; "gelu_new" rounds after each of its pieces. Two are
// PyTorch's own operators on CPUs: the gradient of an embedding rounds each sum of a row, and LayerNorm keeps its mean
// and 1 / standard deviation for backward in the input's dtype. tests/reference/operators has what PyTorch gave.
#pragma once

#include "engine/tensor/ops.h"
#include "engine/tensor/tensor.h"

namespace loom::ops {

// Building blocks, recorded on the tape.
Tensor mul(const Tensor& a, const Tensor& b);            // shapes broadcast (ops/general.h)
Tensor mul_rows(const Tensor& x, const Tensor& factor);  // x [..., dim] times factor [...] (one a row)
Tensor neg(const Tensor& x);
Tensor cube(const Tensor& x);  // torch.pow(x, 3): the square is rounded
Tensor silu(const Tensor& x);
Tensor mean_square(const Tensor& x);                    // over the last dim: x [..., dim] -> [...], fp32 (fp64)
Tensor rsqrt_eps(const Tensor& x, double eps);          // 1 / sqrt(x + eps)
Tensor rotate_half(const Tensor& x);                    // last dim: [a, b] -> [-b, a]
Tensor swap_dims_1_2(const Tensor& x);                  // [B,S,H,D] -> [B,H,S,D], a copy
Tensor repeat_kv(const Tensor& x, std::int64_t times);  // [B,G,S,D] -> [B,G*times,S,D]
// Batched over the leading dims: a [..., M, K] . b [..., K, N], or b [..., N, K] when transposed.
Tensor bmm(const Tensor& a, const Tensor& b, bool transpose_b);
// [..., S_q, S_k]: the smallest number is added where the key's position is above the query's, start + its row; with
// ends, where it lies in another segment too (scores [B,H,S,S]).
Tensor causal_mask(const Tensor& scores, std::int64_t start = 0, const SegmentEnds& ends = {});
Tensor softmax(const Tensor& x);  // last dim, in fp32 (fp64), result in x's dtype
// torch.softmax(x, -1): as softmax(), but its backward, too, has the result that was rounded.
Tensor plain_softmax(const Tensor& x);
Tensor log_softmax(const Tensor& x);  // last dim
Tensor log_sum_exp(const Tensor& x);  // over the last dim: x [..., dim] -> [...], fp32 (fp64)
Tensor nll_loss(const Tensor& log_probs, const Tensor& targets, std::int64_t ignore_index);  // mean, scalar

namespace composed {

Tensor embedding(const Tensor& ids, const Tensor& table);
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps);
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps);
Tensor gelu(const Tensor& x, Gelu form);  // kErf is one operator of PyTorch's: ops::gelu
Tensor swiglu(const Tensor& gate, const Tensor& up);
Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin);
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale, bool causal = true,
                 std::optional<std::int64_t> start = {});
AttentionResult attention_with_log_sum_exp(const Tensor& q, const Tensor& k, const Tensor& v, double scale,
                                           bool causal = true, std::optional<std::int64_t> start = {});
Tensor segment_attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale, const SegmentEnds& ends);
// With plain_softmax: Hugging Face's GPT-2 and InternVL's vision tower. `dropout` is of the weights (ops/general.h);
// `first_head`: of q among the heads of all ranks.
Tensor plain_attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale, bool causal,
                       const SegmentEnds& ends = {}, double dropout = 0, std::int64_t first_head = 0);
// cross_entropy(logits.float()): fp32 logits, fp32 log-softmax, mean negative log-likelihood.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index);

}  // namespace composed
}  // namespace loom::ops
