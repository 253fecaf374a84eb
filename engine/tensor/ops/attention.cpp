#include "engine/kernels/attention.h"

#include <algorithm>

#include "engine/tensor/kept_results.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/support.h"

namespace loom::ops {
namespace {

kernels::Attention describe(const Tensor& q, const Tensor& k, const Tensor& v, double scale, bool causal,
                            std::optional<std::int64_t> start) {
  const std::int64_t first = check_attention(q, k, v, causal, start);
  const Shape& s = q.shape();
  return {.batch = s[0],
          .queries = s[1],
          .keys = k.shape()[1],
          .heads = s[2],
          .kv_heads = k.shape()[2],
          .head_dim = s[3],
          .scale = scale,
          .causal = causal,
          .start = first,
          .dtype = q.dtype()};
}

// The area of the scores that count, a causal diagonal cut in half: two products of it are a forward.
double forward_flops(const kernels::Attention& op) {
  const auto size = [](std::int64_t n) { return static_cast<double>(n); };
  if (op.segment_ends) {
    double pairs = 0;
    std::int64_t begin = 0;
    for (const std::int64_t end : *op.segment_ends) {
      pairs += 0.5 * size(end - begin) * size(end - begin);
      begin = end;
    }
    return 4.0 * size(op.heads) * pairs * size(op.head_dim);
  }
  double pairs = size(op.queries) * size(op.keys);
  if (op.causal) {
    const double cut =
        size(std::clamp<std::int64_t>(op.keys - op.start, 0, op.queries));  // queries before the last key
    pairs = cut * (size(op.start) + 0.5 * cut) + (size(op.queries) - cut) * size(op.keys);
  }
  return 4.0 * size(op.batch * op.heads) * pairs * size(op.head_dim);
}

Cost attention_cost(device::WorkKind work, const kernels::Attention& op, double flops,
                    std::initializer_list<Tensor> read, std::initializer_list<Tensor> written) {
  Cost cost = pass_cost(flops, read, written);
  cost.unit = device::Unit::kAttention;
  cost.dtype = op.dtype;
  cost.batch = op.batch * op.heads;
  cost.m = op.queries;
  cost.n = op.keys;
  cost.k = op.head_dim;
  cost.work = work;
  return cost;
}

AttentionResult forward(const kernels::Attention& op, const Tensor& q, const Tensor& k, const Tensor& v) {
  const std::vector<Tensor> results = autograd::compute_or_recall(autograd::Producer::kAttention, [&] {
    const Tensor out = Tensor::empty(q.shape(), q.dtype());
    const Tensor log_sum_exp = Tensor::empty({op.batch, op.heads, op.queries}, accumulation_dtype(q.dtype()));
    launch("attention",
           attention_cost(device::WorkKind::kAttention, op, forward_flops(op), {q, k, v}, {out, log_sum_exp}),
           [&] { kernels::attention_forward(op, q.raw(), k.raw(), v.raw(), out.raw(), log_sum_exp.raw()); });
    return std::vector{out, log_sum_exp};
  });
  return {results[0], results[1]};
}

// dlog_sum_exp may be undefined.
Grads backward(const kernels::Attention& op, Saved saved, const Tensor& dout, const Tensor& dlog_sum_exp) {
  const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &lse = saved[4];
  Tensor dq = Tensor::empty(q.shape(), q.dtype());
  Tensor dk = Tensor::empty(k.shape(), k.dtype());
  Tensor dv = Tensor::empty(v.shape(), v.dtype());
  launch("attention_grad",
         attention_cost(device::WorkKind::kAttentionBackward, op, 2.5 * forward_flops(op),
                        {q, k, v, out, lse, dout, dlog_sum_exp}, {dq, dk, dv}),
         [&] {
           kernels::attention_backward(op, {.q = q.raw(),
                                            .k = k.raw(),
                                            .v = v.raw(),
                                            .out = out.raw(),
                                            .log_sum_exp = lse.raw(),
                                            .dout = dout.raw(),
                                            .dlog_sum_exp = raw_or_null(dlog_sum_exp),
                                            .dq = dq.raw(),
                                            .dk = dk.raw(),
                                            .dv = dv.raw()});
         });
  return {dq, dk, dv};
}

}  // namespace

namespace {

Tensor recorded(const kernels::Attention& op, const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto [out, log_sum_exp] = forward(op, q, k, v);
  autograd::record("attention", {q, k, v}, {q, k, v, out, log_sum_exp}, {out},
                   [op](Saved saved, const Grads& grads, const Needs&) { return backward(op, saved, grads[0], {}); });
  return out;
}

}  // namespace

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale, bool causal,
                 std::optional<std::int64_t> start) {
  return recorded(describe(q, k, v, scale, causal, start), q, k, v);
}

Tensor segment_attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale, const SegmentEnds& ends) {
  kernels::Attention op = describe(q, k, v, scale, true, {});
  if (ends) check_segments(q, k, *ends);
  op.segment_ends = ends;
  return recorded(op, q, k, v);
}

AttentionResult attention_with_log_sum_exp(const Tensor& q, const Tensor& k, const Tensor& v, double scale, bool causal,
                                           std::optional<std::int64_t> start) {
  const kernels::Attention op = describe(q, k, v, scale, causal, start);
  const AttentionResult result = forward(op, q, k, v);
  autograd::record("attention", {q, k, v}, {q, k, v, result.out, result.log_sum_exp}, {result.out, result.log_sum_exp},
                   [op](Saved saved, const Grads& grads, const Needs&) {
                     const Tensor& out = saved[3];
                     const Tensor dout = grads[0].defined() ? grads[0] : Tensor::zeros(out.shape(), out.dtype());
                     return backward(op, saved, dout, grads.size() > 1 ? grads[1] : Tensor{});
                   });
  return result;
}

AttentionGrads attention_backward(const AttentionInputs& part, const AttentionResult& whole, const Tensor& dout) {
  const kernels::Attention op = describe(part.q, part.k, part.v, part.scale, part.causal, part.start);
  check_same("attention_backward", whole.out, dout);
  check_same("attention_backward", part.q, dout);
  const Tensor saved[] = {part.q, part.k, part.v, whole.out, whole.log_sum_exp};
  Grads grads = backward(op, saved, dout, {});
  return {grads[0], grads[1], grads[2]};
}

}  // namespace loom::ops
