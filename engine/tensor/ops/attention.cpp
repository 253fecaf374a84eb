#include "engine/kernels/attention.h"

#include "engine/tensor/kept_results.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/support.h"

namespace loom::ops {
namespace {

Cost attention_cost(device::WorkKind work, const kernels::Attention& op, double flops,
                    std::initializer_list<Tensor> read, std::initializer_list<Tensor> written) {
  Cost cost = pass_cost(flops, read, written);
  cost.unit = device::Unit::kAttention;
  cost.dtype = op.dtype;
  cost.batch = op.batch * op.heads;
  cost.m = op.seq;
  cost.n = op.seq;
  cost.k = op.head_dim;
  cost.work = work;
  return cost;
}

}  // namespace

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale, bool causal) {
  check_attention(q, k, v);
  const Shape& s = q.shape();
  const kernels::Attention op{.batch = s[0],
                              .seq = s[1],
                              .heads = s[2],
                              .kv_heads = k.shape()[2],
                              .head_dim = s[3],
                              .scale = scale,
                              .causal = causal,
                              .dtype = q.dtype()};
  const double pairs = static_cast<double>(s[0] * s[2] * s[1]) * static_cast<double>(s[1]) * (causal ? 0.5 : 1.0);
  const double flops = 4.0 * pairs * static_cast<double>(s[3]);
  const std::vector<Tensor> results = autograd::compute_or_recall(autograd::Producer::kAttention, [&] {
    const Tensor out = Tensor::empty(s, q.dtype());
    const Tensor log_sum_exp = Tensor::empty({s[0], s[2], s[1]}, accumulation_dtype(q.dtype()));
    launch("attention", attention_cost(device::WorkKind::kAttention, op, flops, {q, k, v}, {out, log_sum_exp}),
           [&] { kernels::attention_forward(op, q.raw(), k.raw(), v.raw(), out.raw(), log_sum_exp.raw()); });
    return std::vector{out, log_sum_exp};
  });
  const Tensor &out = results[0], &log_sum_exp = results[1];
  autograd::record("attention", {q, k, v}, {q, k, v, out, log_sum_exp}, {out},
                   [op, flops](Saved saved, const Grads& grads, const Needs&) -> Grads {
                     const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &lse = saved[4],
                                  &dout = grads[0];
                     Tensor dq = Tensor::empty(q.shape(), q.dtype());
                     Tensor dk = Tensor::empty(k.shape(), k.dtype());
                     Tensor dv = Tensor::empty(v.shape(), v.dtype());
                     const Cost cost = attention_cost(device::WorkKind::kAttentionBackward, op, 2.5 * flops,
                                                      {q, k, v, out, lse, dout}, {dq, dk, dv});
                     launch("attention_grad", cost, [&] {
                       kernels::attention_backward(op, q.raw(), k.raw(), v.raw(), out.raw(), lse.raw(), dout.raw(),
                                                   dq.raw(), dk.raw(), dv.raw());
                     });
                     return {dq, dk, dv};
                   });
  return out;
}

}  // namespace loom::ops
