// The compositions, piece by piece as the eager code of Hugging Face Transformers writes them. A reassigned name
// frees the piece before, as it does there.
#include "engine/tensor/ops/composed.h"

#include <cmath>
#include <numbers>

#include "engine/tensor/ops.h"
#include "engine/tensor/ops/blocks.h"
#include "engine/tensor/ops/general.h"
#include "engine/tensor/ops/support.h"

namespace loom::ops::composed {

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  check_vector("rms_norm", x, weight);
  Tensor hidden = cast(x, accumulation_dtype(x.dtype()));
  const Tensor variance = mean_square(hidden);
  hidden = mul_rows(hidden, rsqrt_eps(variance, eps));
  return mul(cast(hidden, x.dtype()), weight);
}

// 0.5 * x * (1.0 + tanh(sqrt(2.0 / pi) * (x + 0.044715 * pow(x, 3.0)))); the pieces are in the order of their
// gradients' sum.
Tensor gelu(const Tensor& x, Gelu form) {
  if (form == Gelu::kErf) return ops::gelu(x, form);
  const Tensor half = ops::scale(x, 0.5);
  Tensor inner = cube(x);
  inner = ops::scale(inner, 0.044715);
  inner = add(x, inner);
  inner = ops::scale(inner, std::sqrt(2.0 / std::numbers::pi));
  inner = tanh(inner);
  inner = add_scalar(inner, 1.0);
  return mul(half, inner);
}

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  check_same("swiglu", gate, up);
  return mul(silu(gate), up);
}

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  check_rope(x, cos, sin);
  const Tensor along = mul_positions(x, cast(cos, x.dtype()));
  Tensor across = rotate_half(x);
  across = mul_positions(across, cast(sin, x.dtype()));
  return add(along, across);
}

namespace {

// The masked scores; k and v become as many heads as q has.
Tensor scores(const Tensor& q, Tensor& k, Tensor& v, double scale, bool causal, std::int64_t first,
              const SegmentEnds& ends) {
  const std::int64_t times = q.shape()[2] / k.shape()[2];
  const Tensor queries = swap_dims_1_2(q);
  k = repeat_kv(swap_dims_1_2(k), times);
  v = repeat_kv(swap_dims_1_2(v), times);
  Tensor weights = bmm(queries, k, true);
  weights = ops::scale(weights, scale);
  return causal ? causal_mask(weights, first, ends) : weights;
}

AttentionResult attend(const Tensor& q, Tensor k, Tensor v, double scale, bool causal,
                       std::optional<std::int64_t> start, bool with_log_sum_exp, const SegmentEnds& ends = {}) {
  const std::int64_t first = check_attention(q, k, v, causal, start);
  Tensor weights = scores(q, k, v, scale, causal, first, ends);
  const Tensor normaliser = with_log_sum_exp ? log_sum_exp(weights) : Tensor{};
  weights = softmax(weights);
  return {swap_dims_1_2(bmm(weights, v, false)), normaliser};
}

}  // namespace

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale, bool causal,
                 std::optional<std::int64_t> start) {
  return attend(q, k, v, scale, causal, start, false).out;
}

Tensor segment_attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale, const SegmentEnds& ends) {
  check_attention(q, k, v, true, {});
  if (ends) check_segments(q, k, *ends);
  return attend(q, k, v, scale, true, {}, false, ends).out;
}

Tensor plain_attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale, bool causal,
                       const SegmentEnds& ends, double dropout, std::int64_t first_head) {
  const std::int64_t first = check_attention(q, k, v, causal, {});
  if (ends) check_segments(q, k, *ends);
  Tensor keys = k, values = v;
  Tensor weights = scores(q, keys, values, scale, causal, first, ends);
  weights = ops::dropout(plain_softmax(weights), dropout, true, {.dim = 1, .begin = first_head});
  return swap_dims_1_2(bmm(weights, values, false));
}

AttentionResult attention_with_log_sum_exp(const Tensor& q, const Tensor& k, const Tensor& v, double scale, bool causal,
                                           std::optional<std::int64_t> start) {
  return attend(q, k, v, scale, causal, start, true);
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index) {
  check_targets("cross_entropy", logits, targets);
  return nll_loss(log_softmax(cast(logits, accumulation_dtype(logits.dtype()))), targets, ignore_index);
}

}  // namespace loom::ops::composed
