#include "engine/dist/context_attention.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "engine/comm/mesh.h"
#include "engine/core/error.h"
#include "engine/dist/exchange_in_flight.h"
#include "engine/dist/operators.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops/attention_parts.h"
#include "engine/tensor/ops/general.h"

namespace loom::dist {
namespace {

using autograd::Grads;
using autograd::Needs;
using autograd::Saved;
using ops::AttentionPiece;

// --- Which keys of an owner this rank's queries see

struct Zigzag {
  int ranks;
  std::int64_t rows;   // of the batch
  std::int64_t chunk;  // positions
  ops::SegmentEnds ends;

  std::int64_t local() const { return 2 * chunk; }
  // The two chunks of a rank, in its order.
  std::int64_t chunk_of(int rank, int which) const { return which == 0 ? rank : 2 * ranks - 1 - rank; }
};

void add_rows(std::vector<AttentionPiece>& pieces, std::int64_t rows, AttentionPiece piece) {
  for (piece.row = 0; piece.row < rows; ++piece.row) pieces.push_back(piece);
}

void add_unpacked(std::vector<AttentionPiece>& pieces, const Zigzag& zigzag, int own, int owner) {
  const std::int64_t local = zigzag.local(), chunk = zigzag.chunk;
  if (owner == own) {
    pieces.push_back({.rows = zigzag.rows, .q_count = local, .k_count = local, .causal = true});
  } else if (owner < own) {
    add_rows(pieces, zigzag.rows, {.q_count = local, .k_count = chunk});
  } else {
    add_rows(pieces, zigzag.rows, {.q_begin = chunk, .q_count = chunk, .k_count = local});
  }
}

// What of [begin, end) lies in chunk `at` of a row.
TokenRange inside(const Zigzag& zigzag, std::int64_t at, const TokenRange& segment) {
  return {std::max(segment.begin, at * zigzag.chunk), std::min(segment.end, (at + 1) * zigzag.chunk)};
}

void add_segment(std::vector<AttentionPiece>& pieces, const Zigzag& zigzag, int own, int owner, std::int64_t row,
                 const TokenRange& segment) {
  for (int q_which = 0; q_which < 2; ++q_which) {
    const std::int64_t q_chunk = zigzag.chunk_of(own, q_which);
    const TokenRange q = inside(zigzag, q_chunk, segment);
    for (int k_which = 0; k_which < 2; ++k_which) {
      const std::int64_t k_chunk = zigzag.chunk_of(owner, k_which);
      const TokenRange k = inside(zigzag, k_chunk, segment);
      if (k_chunk > q_chunk || q.begin >= q.end || k.begin >= k.end) continue;
      pieces.push_back({.row = row,
                        .q_begin = q_which * zigzag.chunk + q.begin - q_chunk * zigzag.chunk,
                        .q_count = q.end - q.begin,
                        .k_begin = k_which * zigzag.chunk + k.begin - k_chunk * zigzag.chunk,
                        .k_count = k.end - k.begin,
                        .causal = k_chunk == q_chunk});
    }
  }
}

std::vector<AttentionPiece> pieces_of(const Zigzag& zigzag, int own, int owner) {
  std::vector<AttentionPiece> pieces;
  if (!zigzag.ends) {
    add_unpacked(pieces, zigzag, own, owner);
    return pieces;
  }
  const std::int64_t length = 2 * zigzag.ranks * zigzag.chunk;
  std::int64_t begin = 0;
  for (const std::int64_t end : *zigzag.ends) {
    const std::int64_t row = begin / length;
    add_segment(pieces, zigzag, own, owner, row, {begin - row * length, end - row * length});
    begin = end;
  }
  return pieces;
}

// Those of all owners, whose keys lie one behind another in a row.
std::vector<AttentionPiece> pieces_of_all(const Zigzag& zigzag, int own) {
  std::vector<AttentionPiece> all;
  for (int owner = 0; owner < zigzag.ranks; ++owner) {
    for (AttentionPiece piece : pieces_of(zigzag, own, owner)) {
      piece.k_begin += owner * zigzag.local();
      const std::int64_t rows = std::exchange(piece.rows, 1);
      for (std::int64_t row = 0; row < rows; ++row, ++piece.row) all.push_back(piece);
    }
  }
  return all;
}

// --- Keys and values that go round

// Those of each step, in one buffer [2B,S,G,D].
class Round {
 public:
  Round(const Tensor& k, const Tensor& v, const Context& context, const std::string& tag)
      : ring_(context.ring), tag_(tag + " keys"), rows_(k.shape()[0]), kv_(ops::concat({k, v}, 0)) {
    if (context.keys == RingKeys::kRegathered) all_ = all_gather(kv_, 0, ring_, tag_);
  }

  int owner(int step) const { return (ring_.rank() + ring_.size() - step) % ring_.size(); }
  // Keys and values of this step, of steps 0, 1, ... in turn.
  std::pair<Tensor, Tensor> of_step(int step) {
    if (all_.defined()) {
      kv_ = all_.rows(owner(step) * 2 * rows_, 2 * rows_);
    } else {
      if (step > 0) kv_ = next_->wait();
      if (step + 1 < ring_.size()) next_.emplace(ExchangeInFlight::shift(kv_, ring_, tag_));
    }
    return {kv_.rows(0, rows_), kv_.rows(rows_, rows_)};
  }

 private:
  const Channel ring_;
  const std::string tag_;
  const std::int64_t rows_;
  Tensor kv_;
  Tensor all_;
  std::optional<ExchangeInFlight> next_;  // on its way while this step computes
};

Grads ring_backward(const Saved& saved, const Tensor& dout, double scale, const Zigzag& zigzag, const Context& context,
                    const std::string& tag) {
  const autograd::NoGrad no_grad;
  const Tensor &q = saved[0], &k = saved[1], &v = saved[2];
  const std::int64_t rows = zigzag.rows;
  ops::AttentionOverPartsBackward over(q, {saved[3], saved[4]}, dout, scale);
  Round round(k, v, context, tag);
  Shape both = k.shape();
  both[0] *= 2;
  std::optional<ExchangeInFlight> travelling;
  for (int step = 0; step < context.ring.size(); ++step) {
    const auto [keys, values] = round.of_step(step);
    Tensor own = ops::sums_like(both, k.dtype());
    over.add(keys, values, pieces_of(zigzag, context.ring.rank(), round.owner(step)), own.rows(0, rows),
             own.rows(rows, rows));
    if (travelling) own = ops::add(travelling->wait(), own);
    travelling.emplace(ExchangeInFlight::shift(std::move(own), context.ring, tag + " gradients"));
  }
  const Tensor gradients = travelling->wait();
  return {over.finish(), ops::rounded_to(k.dtype(), gradients.rows(0, rows)),
          ops::rounded_to(v.dtype(), gradients.rows(rows, rows))};
}

Tensor ring_attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale, const Zigzag& zigzag,
                      const Context& context, const std::string& tag) {
  ops::AttentionResult result;
  {
    const autograd::NoGrad no_grad;
    ops::AttentionOverParts over(q, scale);
    Round round(k, v, context, tag);
    for (int step = 0; step < context.ring.size(); ++step) {
      const auto [keys, values] = round.of_step(step);
      over.add(keys, values, pieces_of(zigzag, context.ring.rank(), round.owner(step)));
    }
    result = over.finish();
  }
  autograd::record("ring_attention", {q, k, v}, {q, k, v, result.out, result.log_sum_exp}, {result.out},
                   [scale, zigzag, context, tag](Saved saved, const Grads& grads, const Needs&) {
                     return ring_backward(saved, grads[0], scale, zigzag, context, tag);
                   });
  return result.out;
}

// --- Keys and values that are gathered

Tensor attention_on_gathered(const Tensor& q, const Tensor& keys, const Tensor& values, double scale,
                             std::vector<AttentionPiece> pieces) {
  ops::AttentionOverParts over(q, scale);
  over.add(keys, values, pieces);
  const ops::AttentionResult result = over.finish();
  autograd::record("gathered_attention", {q, keys, values}, {q, keys, values, result.out, result.log_sum_exp},
                   {result.out},
                   [scale, pieces = std::move(pieces)](Saved saved, const Grads& grads, const Needs&) -> Grads {
                     const autograd::NoGrad no_grad;
                     ops::AttentionOverPartsBackward over(saved[0], {saved[3], saved[4]}, grads[0], scale);
                     const Tensor &k = saved[1], &v = saved[2];
                     const Tensor dk = ops::sums_like(k.shape(), k.dtype()), dv = ops::sums_like(v.shape(), v.dtype());
                     over.add(k, v, pieces, dk, dv);
                     return {over.finish(), ops::rounded_to(k.dtype(), dk), ops::rounded_to(v.dtype(), dv)};
                   });
  return result.out;
}

Tensor attention_in_ring(const Tensor& q, const Tensor& k, const Tensor& v, double scale, const ops::SegmentEnds& ends,
                         const Context& context, const std::string& tag) {
  const Zigzag zigzag{context.ring.size(), q.shape()[0], q.shape()[1] / 2, ends};
  if (context.keys != RingKeys::kGathered) return ring_attention(q, k, v, scale, zigzag, context, tag);
  return attention_on_gathered(q, all_gather(k, 1, context.ring, tag + " keys"),
                               all_gather(v, 1, context.ring, tag + " values"), scale,
                               pieces_of_all(zigzag, context.ring.rank()));
}

// --- Heads

// x [B,S,G,D] -> [B,S,G * times,D], each head `times` times.
Tensor repeated_heads(const Tensor& x, std::int64_t times) {
  const Shape& s = x.shape();
  const Tensor apart = ops::reshape(x, {s[0] * s[1], s[2], 1, s[3]});
  const std::vector<Tensor> copies(static_cast<std::size_t>(times), apart);
  return ops::reshape(ops::concat(copies, 2), {s[0], s[1], s[2] * times, s[3]});
}

// As many key/value heads as `ranks` can share.
Tensor for_ranks(const Tensor& x, int ranks) {
  const std::int64_t heads = x.shape()[2];
  return heads < ranks ? repeated_heads(x, ranks / heads) : x;
}

void check_heads(const Tensor& q, const Tensor& k, int ranks, const std::string& tag) {
  const std::int64_t heads = q.shape()[2], kv_heads = k.shape()[2];
  check_model(
      heads % ranks == 0,
      "'{}' has {} attention heads, which {} ranks of Ulysses cannot share evenly; use a number that divides {}", tag,
      heads, ranks, heads);
  check_model(kv_heads % ranks == 0 || ranks % kv_heads == 0,
              "'{}' has {} key/value heads, which {} ranks of Ulysses cannot share evenly; use a divisor or a multiple "
              "of {}",
              tag, kv_heads, ranks, kv_heads);
}

}  // namespace

Context context_of(const comm::DeviceMesh& mesh, RingKeys keys) {
  return {.ulysses = {mesh.axis("ulysses").shared_group()}, .ring = {mesh.axis("ring").shared_group()}, .keys = keys};
}

Tensor context_attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale, const ops::SegmentEnds& ends,
                         const Context& context, WholeAttention whole, const std::string& tag) {
  const Channel& ulysses = context.ulysses;
  check_heads(q, k, ulysses.size(), tag);
  const auto to_positions = [&](const Tensor& x) { return exchange_dims(x, 2, 1, ulysses, tag); };
  const Tensor queries = to_positions(q), keys = to_positions(for_ranks(k, ulysses.size())),
               values = to_positions(for_ranks(v, ulysses.size()));
  const Tensor out = context.ring.size() == 1 ? whole(queries, keys, values, scale, ends)
                                              : attention_in_ring(queries, keys, values, scale, ends, context, tag);
  return exchange_dims(out, 1, 2, ulysses, tag);
}

}  // namespace loom::dist
