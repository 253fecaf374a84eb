#include "engine/tensor/ops/attention_parts.h"

#include <limits>
#include <utility>

#include "engine/kernels/attention_parts.h"
#include "engine/tensor/ops/support.h"

namespace loom::ops {
namespace {

// Rows [row, row + rows) and positions [begin, begin + count) of x [B,S,heads,D]: a view.
Tensor box(const Tensor& x, std::int64_t row, std::int64_t rows, std::int64_t begin, std::int64_t count) {
  const Shape& s = x.shape();
  const Tensor kept = rows == s[0] ? x : x.rows(row, rows);
  if (count == s[1]) return kept;
  require(rows == 1, "a piece of {} rows has {} of {} positions", rows, count, s[1]);
  return kept.view({s[1], s[2], s[3]}).rows(begin, count).view({1, count, s[2], s[3]});
}

Tensor queries_of(const Tensor& x, const AttentionPiece& piece) {
  return box(x, piece.row, piece.rows, piece.q_begin, piece.q_count);
}

Tensor keys_of(const Tensor& x, const AttentionPiece& piece) {
  return box(x, piece.row, piece.rows, piece.k_begin, piece.k_count);
}

kernels::AttentionPart part_of(const Tensor& whole, DType dtype, const AttentionPiece& piece, std::int64_t begin,
                               std::int64_t count) {
  const Shape& s = whole.shape();
  return {.dtype = dtype,
          .positions = s[1],
          .heads = s[2],
          .head_dim = s[3],
          .row = piece.row,
          .rows = piece.rows,
          .begin = begin,
          .count = count};
}

void add_box(const Tensor& sums, const AttentionPiece& piece, std::int64_t begin, const Tensor& part) {
  const kernels::AttentionPart op = part_of(sums, part.dtype(), piece, begin, part.shape()[1]);
  Cost cost = pass_cost(static_cast<double>(part.numel()), {part}, {});
  cost.read_bytes += part.numel() * element_bytes(sums.dtype());
  cost.written_bytes += part.numel() * element_bytes(sums.dtype());
  launch("add_attention_part", cost, [&] { kernels::add_attention_part(op, part.raw(), sums.raw()); });
}

}  // namespace

Tensor sums_like(const Shape& shape, DType dtype) { return Tensor::zeros(shape, accumulation_dtype(dtype)); }

Tensor rounded_to(DType dtype, const Tensor& sums) { return sums.dtype() == dtype ? sums : cast(sums, dtype); }

AttentionOverParts::AttentionOverParts(Tensor q, double scale)
    : q_(std::move(q)),
      scale_(scale),
      out_(sums_like(q_.shape(), q_.dtype())),
      log_sum_exp_(Tensor::full({q_.shape()[0], q_.shape()[2], q_.shape()[1]}, out_.dtype(),
                                -std::numeric_limits<double>::infinity())) {}

void AttentionOverParts::add(const Tensor& k, const Tensor& v, std::span<const AttentionPiece> pieces) {
  const autograd::NoGrad no_grad;
  for (const AttentionPiece& piece : pieces) {
    const AttentionResult part =
        attention_with_log_sum_exp(queries_of(q_, piece), keys_of(k, piece), keys_of(v, piece), scale_, piece.causal,
                                   piece.causal ? std::optional<std::int64_t>(0) : std::nullopt);
    const kernels::AttentionPart op = part_of(q_, q_.dtype(), piece, piece.q_begin, piece.q_count);
    Cost cost = pass_cost(4.0 * static_cast<double>(part.out.numel()), {part.out, part.log_sum_exp}, {});
    const std::int64_t whole = part.out.numel() * element_bytes(out_.dtype()) + part.log_sum_exp.nbytes();
    cost.read_bytes += whole;
    cost.written_bytes += whole;
    launch("join_attention_part", cost, [&] {
      kernels::join_attention_part(op, part.out.raw(), part.log_sum_exp.raw(), out_.raw(), log_sum_exp_.raw());
    });
  }
}

AttentionResult AttentionOverParts::finish() {
  const autograd::NoGrad no_grad;
  return {rounded_to(q_.dtype(), std::exchange(out_, {})), std::exchange(log_sum_exp_, {})};
}

AttentionOverPartsBackward::AttentionOverPartsBackward(Tensor q, AttentionResult whole, Tensor dout, double scale)
    : q_(std::move(q)),
      whole_(std::move(whole)),
      dout_(std::move(dout)),
      scale_(scale),
      dq_(sums_like(q_.shape(), q_.dtype())) {}

void AttentionOverPartsBackward::add(const Tensor& k, const Tensor& v, std::span<const AttentionPiece> pieces,
                                     const Tensor& dk, const Tensor& dv) {
  const autograd::NoGrad no_grad;
  const Tensor& lse = whole_.log_sum_exp;
  for (const AttentionPiece& piece : pieces) {
    Tensor part_lse = lse;
    if (piece.rows != q_.shape()[0] || piece.q_count != q_.shape()[1]) {
      part_lse = Tensor::empty({piece.rows, q_.shape()[2], piece.q_count}, lse.dtype());
      const kernels::AttentionPart op = part_of(q_, q_.dtype(), piece, piece.q_begin, piece.q_count);
      launch("copy_log_sum_exp", pass_cost(0, {part_lse}, {part_lse}),
             [&] { kernels::copy_log_sum_exp(op, lse.raw(), part_lse.raw()); });
    }
    const AttentionGrads grads =
        attention_backward({.q = queries_of(q_, piece),
                            .k = keys_of(k, piece),
                            .v = keys_of(v, piece),
                            .scale = scale_,
                            .causal = piece.causal,
                            .start = piece.causal ? std::optional<std::int64_t>(0) : std::nullopt},
                           {queries_of(whole_.out, piece), part_lse}, queries_of(dout_, piece));
    add_box(dq_, piece, piece.q_begin, grads.dq);
    add_box(dk, piece, piece.k_begin, grads.dk);
    add_box(dv, piece, piece.k_begin, grads.dv);
  }
}

Tensor AttentionOverPartsBackward::finish() {
  const autograd::NoGrad no_grad;
  return rounded_to(q_.dtype(), std::exchange(dq_, {}));
}

}  // namespace loom::ops
