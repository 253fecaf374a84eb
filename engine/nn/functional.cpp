#include "engine/nn/functional.h"

#include "engine/core/rank_context.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/composed.h"

namespace loom::nn::functional {
namespace {
const KernelOptions& options() { return RankContext::current().slot<KernelOptions>(); }
}  // namespace

Tensor embedding(const Tensor& ids, const Tensor& table) {
  return options().fused_others ? ops::embedding(ids, table) : ops::composed::embedding(ids, table);
}

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return options().fused_others ? ops::layer_norm(x, weight, bias, eps)
                                : ops::composed::layer_norm(x, weight, bias, eps);
}

Tensor gelu(const Tensor& x, ops::Gelu form) {
  return options().fused_others ? ops::gelu(x, form) : ops::composed::gelu(x, form);
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  return options().fused_rmsnorm ? ops::rms_norm(x, weight, eps) : ops::composed::rms_norm(x, weight, eps);
}

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  return options().fused_swiglu ? ops::swiglu(gate, up) : ops::composed::swiglu(gate, up);
}

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  return options().fused_rotary_pos_emb ? ops::rope(x, cos, sin) : ops::composed::rope(x, cos, sin);
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale, bool causal,
                 std::optional<std::int64_t> start) {
  return options().flash_attn ? ops::attention(q, k, v, scale, causal, start)
                              : ops::composed::attention(q, k, v, scale, causal, start);
}

Tensor segment_attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale,
                         const ops::SegmentEnds& ends) {
  return options().flash_attn ? ops::segment_attention(q, k, v, scale, ends)
                              : ops::composed::segment_attention(q, k, v, scale, ends);
}

Tensor plain_attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale, bool causal,
                       const ops::SegmentEnds& ends) {
  if (!options().flash_attn) return ops::composed::plain_attention(q, k, v, scale, causal, ends);
  return ends ? ops::segment_attention(q, k, v, scale, ends) : ops::attention(q, k, v, scale, causal);
}

ops::AttentionResult attention_with_log_sum_exp(const Tensor& q, const Tensor& k, const Tensor& v, double scale,
                                                bool causal, std::optional<std::int64_t> start) {
  return options().flash_attn ? ops::attention_with_log_sum_exp(q, k, v, scale, causal, start)
                              : ops::composed::attention_with_log_sum_exp(q, k, v, scale, causal, start);
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index) {
  return options().fused_cross_entropy ? ops::cross_entropy(logits, targets, ignore_index)
                                       : ops::composed::cross_entropy(logits, targets, ignore_index);
}

}  // namespace loom::nn::functional
