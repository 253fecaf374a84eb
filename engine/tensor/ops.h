// Operators on tensors: shape rule, cost and arithmetic of each, recorded on the tape. Fused; ops/composed.h
// has the composed one.
//
// Letters  B batch, S sequence, H query heads, G key/value heads, D head dim, V vocabulary, rows: all dims but the
//          last.
// Places   inputs and results live on the current rank's device; token ids and targets (int32/int64) may be host
//          tensors.
// dtypes   all floating inputs of one operator share a dtype, which the result has, unless noted otherwise.
// Errors   ModelError naming the running module, operator and shapes for shapes or dtypes that do not fit; ConfigError
//          for token ids out of range.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/tensor/tensor.h"

namespace loom::ops {

// x [..., K] . weight [N, K]^T + bias [N] -> [..., N]; bias may be undefined.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});
// x [..., K] . weight [K, N] + bias [N] -> [..., N]: GPT-2's Conv1D.
Tensor linear_kn(const Tensor& x, const Tensor& weight, const Tensor& bias);
// Rows of table [V, dim]: ids [...] -> [..., dim].
Tensor embedding(const Tensor& ids, const Tensor& table);

// Shapes broadcast as PyTorch's do (ops/general.h).
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

// x [B,S,H,D]; cos, sin [S,D], or [B,S,D] where rows have positions of their own; of any floating dtype, without
// gradient.
Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin);

// q [B,S_q,H,D]; k, v [B,S_k,G,D] -> [B,S_q,H,D]. Keeps q, k, v, out and one fp32 (fp64) per query and head.
// Mask  key j has position j, query i has position start + i; a causal query sees the keys at its own position and
//       before. Without a start the queries are the last S_q positions: with a cache of keys, the tokens just appended.
//       start may be S_k or more: every query sees every key. Read when causal.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale, bool causal = true,
                 std::optional<std::int64_t> start = {});

// Where segments of the positions end, counted over all rows of a batch: row b's position s is b * S + s. Ascending;
// every row ends a segment. Null: each row is one segment.
using SegmentEnds = std::shared_ptr<const std::vector<std::int64_t>>;
// Causal attention within segments: as many queries as keys, and a query sees nothing of another segment. A segment has
// the bits that it has as a batch of its own. ModelError for ends that are none.
Tensor segment_attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale, const SegmentEnds& ends);

struct AttentionResult {
  Tensor out;          // [B,S_q,H,D]
  Tensor log_sum_exp;  // fp32 (fp64) [B,H,S_q]: log(sum(exp(scale * score))) over the keys that a query sees
};
// The same with its log-sum-exp, to join attentions over parts of the keys: with l_i for part i and
// l = log(sum_i exp(l_i)), the whole is sum_i exp(l_i - l) * out_i. Both results have a gradient.
AttentionResult attention_with_log_sum_exp(const Tensor& q, const Tensor& k, const Tensor& v, double scale,
                                           bool causal = true, std::optional<std::int64_t> start = {});

// The backward of attention, unrecorded, for operators with a backward of their own. `whole` may be the result over
// more keys, of which k and v are a part: dk and dv are then the part's, and dq summed over the parts is the whole's.
struct AttentionInputs {
  Tensor q, k, v;
  double scale = 1;
  bool causal = true;
  std::optional<std::int64_t> start;
};
struct AttentionGrads {
  Tensor dq, dk, dv;
};
AttentionGrads attention_backward(const AttentionInputs& part, const AttentionResult& whole, const Tensor& dout);

// Mean over the rows whose target is not ignore_index; logits [..., V], targets [...] -> fp32 (fp64) scalar. 0 when no
// row counts. Backward writes the gradient over the logits unless others hold them.
inline constexpr std::int64_t kIgnoreIndex = -100;
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index = kIgnoreIndex);

// How likely each row of targets is: the sum of log(softmax(logits)) at its targets that are not ignore_index. logits
// [R,S,V], targets [R,S] -> fp32 (fp64) [R]. Backward writes the gradient over the logits unless others hold them.
Tensor sequence_log_probs(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index = kIgnoreIndex);

}  // namespace loom::ops
