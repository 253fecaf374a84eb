// Functional forms that exist fused and composed; the rank's KernelOptions choose. Shapes as in engine/tensor/ops.h.
#pragma once

#include "engine/tensor/ops.h"

namespace loom::nn {

// Which operators run fused. A slot of the rank context; all on is --kernels fast, all off --kernels pytorch.
// Flags: --use-fused-rmsnorm --use-fused-swiglu --use-fused-rotary-pos-emb --use-flash-attn
// --cross-entropy-loss-fusion; the operators of fused_others have none.
struct KernelOptions {
  bool fused_rmsnorm = true;
  bool fused_swiglu = true;
  bool fused_rotary_pos_emb = true;
  bool flash_attn = true;
  bool fused_cross_entropy = true;
  bool fused_others = true;  // embedding, LayerNorm, GELU

  static KernelOptions fast() { return {}; }
  static KernelOptions pytorch() { return {false, false, false, false, false, false}; }
};

namespace functional {

Tensor embedding(const Tensor& ids, const Tensor& table);
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps);
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps);
Tensor gelu(const Tensor& x, ops::Gelu form);
Tensor swiglu(const Tensor& gate, const Tensor& up);
Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin);
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale, bool causal = true,
                 std::optional<std::int64_t> start = {});
Tensor segment_attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale, const ops::SegmentEnds& ends);
// Composed: torch.softmax(scores, -1) in the dtype of the scores, of which attention() has the softmax in fp32.
Tensor plain_attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale, bool causal,
                       const ops::SegmentEnds& ends = {});
ops::AttentionResult attention_with_log_sum_exp(const Tensor& q, const Tensor& k, const Tensor& v, double scale,
                                                bool causal = true, std::optional<std::int64_t> start = {});
// Mean over the targets that are not `ignore_index`; composed: cross_entropy(logits.float(), targets).
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index = -100);

}  // namespace functional
}  // namespace loom::nn
