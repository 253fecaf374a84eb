#include <memory>

#include "engine/core/parallel.h"
#include "engine/core/rounding.h"
#include "engine/kernels/attention_impl.h"
#include "engine/kernels/attention_tiles.h"
#include "engine/kernels/scratch.h"

// A query head is one unit of work: key tile by key tile, and for each the query blocks that see it,
//   P = 2^(scale log2(e) Q K^T - lse),  dP = dO V^T,  dS = P * (dP - delta),  delta = rowsum(dO * O) - dlse
//   dV += P^T dO,  dK += dS^T Q,  dQ += dS K            (dQ and dK are multiplied by scale at the end)
// With grouped heads, each query head leaves its dK and dV in fp32 and a second loop adds them in head order.

namespace loom::kernels::attn {
namespace {

template <class T>
class Backward {
  using M = typename ArithmeticOf<T>::type;
  using Acc = typename M::Acc;
  using Unit = typename M::Unit;
  static constexpr int kWidth = kLanes<Acc>;
  static constexpr int kPack = M::kPack;

 public:
  struct Tensors {
    const T *q, *k, *v, *out;
    const Acc* log_sum_exp;
    const T* dout;
    const Acc* dlog_sum_exp;
    T *dq, *dk, *dv;
  };

  Backward(const Dense& op, const Tensors& tensors)
      : op_(op),
        layout_(op),
        packer_(op.head_dim),
        t_(tensors),
        scale_(static_cast<Acc>(op.scale)),
        blocks_(ceil_div<std::int64_t>(op.queries, kTile)),
        tiles_(ceil_div<std::int64_t>(op.keys, kTile)) {}

  void run() {
    if (layout_.group > 1) {
      const std::int64_t elems = op_.batch * op_.heads * op_.keys * op_.head_dim;
      static thread_local Scratch scratch;
      head_dk_ = scratch.get<Acc>(2 * elems);
      head_dv_ = head_dk_ + elems;
    }
    parallel_for(op_.batch * op_.heads, [this](std::int64_t i) { head(i / op_.heads, i % op_.heads); });
    if (layout_.group > 1) {
      parallel_for(op_.batch * op_.kv_heads * tiles_, [this](std::int64_t i) { add_heads(i / tiles_, i % tiles_); });
    }
  }

 private:
  // Everything of one query head, packed tile by tile; and what one (query block, key tile) needs.
  struct Head {
    std::int64_t batch, head;
    Unit *q_columns, *q_rows, *dout_columns, *dout_rows;  // blocks_ tiles each
    Acc* dq;                                              // [blocks_ * kTile][Dp]
    Acc *lse, *delta;                                     // [blocks_ * kTile], lse in base 2
    Unit *k_columns, *k_rows, *v_columns;                 // one tile each
    Acc *dk, *dv;                                         // [kTile][Dp]
    Unit* staging;
  };
  struct Scores {
    alignas(64) Acc p[kTile * kTile];
    alignas(64) Acc ds[kTile * kTile];
    // As bf16 pairs along the queries, and along the keys.
    alignas(64) Unit p_rows[kPack == 2 ? kTile * kTile / 2 : 1];
    alignas(64) Unit ds_rows[kPack == 2 ? kTile * kTile / 2 : 1];
    alignas(64) Unit ds_columns[kPack == 2 ? kTile * kTile / 2 : 1];
  };

  void head(std::int64_t batch, std::int64_t head_index) const {
    Head h = room(batch, head_index);
    pack_queries(h);
    Scores scores;
    for (std::int64_t tile = 0; tile < tiles_; ++tile) {
      pack_keys(h, tile);
      std::fill_n(h.dk, kTile * packer_.padded_dim(), Acc{0});
      std::fill_n(h.dv, kTile * packer_.padded_dim(), Acc{0});
      for (std::int64_t block = first_block(tile); block < blocks_; ++block) add_pair(h, scores, block, tile);
      write_keys(h, tile);
    }
    write_queries(h);
  }

  // The first block with a query that sees the tile's first key.
  std::int64_t first_block(std::int64_t tile) const {
    return op_.causal ? std::max<std::int64_t>(0, tile * kTile - op_.start) / kTile : 0;
  }

  Head room(std::int64_t batch, std::int64_t head_index) const {
    static thread_local Scratch unit_scratch, acc_scratch;
    const std::int64_t columns = packer_.columns_units(), rows = packer_.rows_units();
    Unit* unit = unit_scratch.get<Unit>(2 * blocks_ * (columns + rows) + 2 * columns + rows + packer_.staging_units());
    const std::int64_t tile_elems = kTile * packer_.padded_dim();
    Acc* acc = acc_scratch.get<Acc>((blocks_ + 2) * tile_elems + 2 * blocks_ * kTile);
    const auto take = [](auto*& from, std::int64_t count) {
      auto* taken = from;
      from += count;
      return taken;
    };
    Head h{};
    h.batch = batch;
    h.head = head_index;
    h.q_columns = take(unit, blocks_ * columns);
    h.q_rows = take(unit, blocks_ * rows);
    h.dout_columns = take(unit, blocks_ * columns);
    h.dout_rows = take(unit, blocks_ * rows);
    h.k_columns = take(unit, columns);
    h.k_rows = take(unit, rows);
    h.v_columns = take(unit, columns);
    h.staging = take(unit, packer_.staging_units());
    h.dq = take(acc, blocks_ * tile_elems);
    h.dk = take(acc, tile_elems);
    h.dv = take(acc, tile_elems);
    h.lse = take(acc, blocks_ * kTile);
    h.delta = take(acc, blocks_ * kTile);
    return h;
  }

  std::int64_t queries_in(std::int64_t block) const {
    return std::min<std::int64_t>(kTile, op_.queries - block * kTile);
  }
  std::int64_t keys_in(std::int64_t tile) const { return std::min<std::int64_t>(kTile, op_.keys - tile * kTile); }

  void pack_queries(const Head& h) const {
    for (std::int64_t block = 0; block < blocks_; ++block) {
      const std::int64_t offset = layout_.q(h.batch, h.head, block * kTile), count = queries_in(block);
      const std::int64_t columns = block * packer_.columns_units(), rows = block * packer_.rows_units();
      pack(t_.q + offset, layout_.q_row, count, h, h.q_rows + rows, h.q_columns + columns);
      pack(t_.dout + offset, layout_.q_row, count, h, h.dout_rows + rows, h.dout_columns + columns);
    }
    std::fill_n(h.dq, blocks_ * kTile * packer_.padded_dim(), Acc{0});
    std::fill_n(h.lse, 2 * blocks_ * kTile, Acc{0});  // delta too: padded rows give P = 1, dS = 0
    const std::int64_t first = layout_.statistic(h.batch, h.head, 0);
    for (std::int64_t row = 0; row < op_.queries; ++row) {
      h.lse[row] = t_.log_sum_exp[first + row] * static_cast<Acc>(kLog2E);
      h.delta[row] = dot_row(layout_.q(h.batch, h.head, row));
      if (t_.dlog_sum_exp != nullptr) h.delta[row] -= t_.dlog_sum_exp[first + row];
    }
  }

  void pack_keys(const Head& h, std::int64_t tile) const {
    const std::int64_t offset = layout_.kv(h.batch, h.head / layout_.group, tile * kTile);
    pack(t_.k + offset, layout_.kv_row, keys_in(tile), h, h.k_rows, h.k_columns);
    packer_.pack(t_.v + offset, layout_.kv_row, keys_in(tile), h.staging, nullptr, h.v_columns);
  }

  void pack(const T* from, std::int64_t stride, std::int64_t count, const Head& h, Unit* rows, Unit* columns) const {
    packer_.pack(from, stride, count, kPack == 1 ? rows : h.staging, rows, columns);
  }

  // rowsum(dO * O), in kWidth partial sums.
  Acc dot_row(std::int64_t offset) const {
    Vector<Acc> sum = {};
    std::int64_t i = 0;
    for (; i + kWidth <= op_.head_dim; i += kWidth)
      sum += widened(t_.out + offset + i, kWidth) * widened(t_.dout + offset + i, kWidth);
    if (i < op_.head_dim)
      sum += widened(t_.out + offset + i, op_.head_dim - i) * widened(t_.dout + offset + i, op_.head_dim - i);
    return sum_of<Acc>(sum);
  }
  // The first `count` lanes from memory, the rest zeros.
  LOOM_INLINE static Vector<Acc> widened(const T* from, std::int64_t count) {
    alignas(64) Acc lanes[kWidth] = {};
    copy_row(from, count, lanes);
    return load(lanes);
  }

  void add_pair(const Head& h, Scores& s, std::int64_t block, std::int64_t tile) const {
    const Mask mask = Mask::of(op_, block * kTile, tile * kTile);
    const std::int64_t count = queries_in(block);
    const Unit* q = h.q_columns + block * packer_.columns_units();
    const Unit* dout = h.dout_columns + block * packer_.columns_units();
    const Acc* lse = h.lse + block * kTile;
    const Acc* delta = h.delta + block * kTile;
    for (std::int64_t row = 0; row < kTile; row += kScoreRows) {
      if (row >= count) {
        clear_rows(s, row);
        continue;
      }
      probabilities(s, mask, row, q + row, h.k_columns, lse + row);
      score_gradients(s, mask, row, dout + row, h.v_columns, delta + row);
    }
    pair(s);
    accumulate(h, s, mask, block, count);
  }

  static void clear_rows(Scores& s, std::int64_t row) {
    std::fill_n(s.p + row * kTile, kScoreRows * kTile, Acc{0});
    std::fill_n(s.ds + row * kTile, kScoreRows * kTile, Acc{0});
  }

  void probabilities(Scores& s, const Mask& mask, std::int64_t row, const Unit* q, const Unit* k,
                     const Acc* lse) const {
    const int vectors = mask.vectors<Acc>(row + kScoreRows - 1);
    const Acc scale = scale_ * static_cast<Acc>(kLog2E);
    Acc* p = s.p + row * kTile;
    multiply_scores<M>(packer_.column_units(), vectors, q, k, [&](int i, int j, Vector<Acc> sum) {
      store(p + i * kTile + j * kWidth, M::exp2(sum * scale - lse[i]));
    });
    for (int i = 0; i < kScoreRows; ++i) {
      const std::int64_t limit = mask.limit(row + i);
      for (int j = static_cast<int>(std::min<std::int64_t>(limit, vectors * kWidth)) / kWidth; j < kTile / kWidth;
           ++j) {
        Acc* at = p + i * kTile + j * kWidth;
        store(at, j < vectors ? masked(load(at), j * kWidth, limit, Acc{0}) : Vector<Acc>{});
      }
    }
  }

  void score_gradients(Scores& s, const Mask& mask, std::int64_t row, const Unit* dout, const Unit* v,
                       const Acc* delta) const {
    const int vectors = mask.vectors<Acc>(row + kScoreRows - 1);
    const Acc* p = s.p + row * kTile;
    Acc* ds = s.ds + row * kTile;
    multiply_scores<M>(packer_.column_units(), vectors, dout, v, [&](int i, int j, Vector<Acc> sum) {
      const std::int64_t at = i * kTile + j * kWidth;
      store(ds + at, load(p + at) * (sum - delta[i]));
    });
    for (int i = 0; i < kScoreRows; ++i) {
      for (int j = vectors; j < kTile / kWidth; ++j) store(ds + i * kTile + j * kWidth, Vector<Acc>{});
    }
  }

  static void pair(Scores& s) {
    if constexpr (kPack == 2) {
      for (int row = 0; row < kTile; row += 2) {
        for (int j = 0; j < kTile; j += kWidth) {
          const int at = row * kTile + j, paired = row / 2 * kTile + j;
          const Vector<Acc> low = load(s.ds + at), high = load(s.ds + at + kTile);
          store(s.p_rows + paired, interleave_pairs(load(s.p + at), load(s.p + at + kTile)));
          store(s.ds_rows + paired, interleave_pairs(low, high));
          store_pairs(s.ds_columns + at / 2, low);
          store_pairs(s.ds_columns + (at + kTile) / 2, high);
        }
      }
    }
  }

  void accumulate(const Head& h, const Scores& s, const Mask& mask, std::int64_t block, std::int64_t count) const {
    const Unit *p_rows, *ds_rows, *ds_columns;
    if constexpr (kPack == 2) {
      p_rows = s.p_rows, ds_rows = s.ds_rows, ds_columns = s.ds_columns;
    } else {
      p_rows = s.p, ds_rows = s.ds, ds_columns = s.ds;
    }
    const std::int64_t step = packer_.padded_dim(), rows = block * packer_.rows_units();
    // Key j is seen by query rows from j - diagonal + 1 on.
    const auto queries = [&](std::int64_t key, int) -> Span {
      return {std::max<std::int64_t>(0, key - mask.diagonal + 1) / kPack, (count + kPack - 1) / kPack};
    };
    const auto keys = [&](std::int64_t row, int more) -> Span {
      return {0, (mask.limit(row + more - 1) + kPack - 1) / kPack};
    };
    const auto add_to = [step](Acc* out) {
      return [out, step](std::int64_t row, std::int64_t column, Vector<Acc> sum) {
        Acc* at = out + row * step + column;
        store(at, load(at) + sum);
      };
    };
    multiply_wide<M, 1, kTile>(mask.keys, step, p_rows, h.dout_rows + rows, step, queries, add_to(h.dv));
    multiply_wide<M, 1, kTile>(mask.keys, step, ds_rows, h.q_rows + rows, step, queries, add_to(h.dk));
    multiply_wide<M, kTile / kPack, 1>(count, step, ds_columns, h.k_rows, step, keys,
                                       add_to(h.dq + block * kTile * step));
  }

  void write_keys(const Head& h, std::int64_t tile) const {
    const std::int64_t step = packer_.padded_dim();
    for (std::int64_t row = 0; row < keys_in(tile); ++row) {
      const std::int64_t key = tile * kTile + row;
      if (layout_.group > 1) {
        const std::int64_t at = layout_.head_key(h.batch, h.head, key);
        finish_row(h.dk + row * step, scale_, op_.head_dim, head_dk_ + at);
        copy_row(h.dv + row * step, op_.head_dim, head_dv_ + at);
      } else {
        const std::int64_t at = layout_.kv(h.batch, h.head, key);
        finish_row(h.dk + row * step, scale_, op_.head_dim, t_.dk + at);
        finish_row(h.dv + row * step, Acc{1}, op_.head_dim, t_.dv + at);
      }
    }
  }

  void write_queries(const Head& h) const {
    const std::int64_t step = packer_.padded_dim();
    for (std::int64_t row = 0; row < op_.queries; ++row) {
      finish_row(h.dq + row * step, scale_, op_.head_dim, t_.dq + layout_.q(h.batch, h.head, row));
    }
  }

  // The tile of a key/value head: its query heads' dK and dV, added in head order.
  void add_heads(std::int64_t kv_unit, std::int64_t tile) const {
    static thread_local Scratch scratch;
    const std::int64_t batch = kv_unit / op_.kv_heads, kv_head = kv_unit % op_.kv_heads;
    const std::int64_t elems = keys_in(tile) * op_.head_dim;
    Acc* sum = scratch.get<Acc>(elems);
    for (const bool keys : {true, false}) {
      const Acc* from = keys ? head_dk_ : head_dv_;
      std::fill_n(sum, elems, Acc{0});
      for (std::int64_t i = 0; i < layout_.group; ++i) {
        const std::int64_t first = layout_.head_key(batch, kv_head * layout_.group + i, tile * kTile);
        for (std::int64_t e = 0; e < elems; ++e) sum[e] += from[first + e];
      }
      T* to = (keys ? t_.dk : t_.dv) + layout_.kv(batch, kv_head, tile * kTile);
      for (std::int64_t row = 0; row < keys_in(tile); ++row) {
        finish_row(sum + row * op_.head_dim, Acc{1}, op_.head_dim, to + row * layout_.kv_row);
      }
    }
  }

  const Dense& op_;
  const Layout layout_;
  const Packer<M, T> packer_;
  const Tensors t_;
  const Acc scale_;
  const std::int64_t blocks_;  // of queries
  const std::int64_t tiles_;   // of keys
  Acc* head_dk_ = nullptr;
  Acc* head_dv_ = nullptr;
};

}  // namespace

template <class T>
void backward(const Dense& op, const AttentionBackward& t) {
  using Acc = typename ArithmeticOf<T>::type::Acc;
  const auto in = [](const void* tensor) { return static_cast<const T*>(tensor); };
  const auto statistic = [](const void* tensor) { return static_cast<const Acc*>(tensor); };
  const auto result = [](void* tensor) { return static_cast<T*>(tensor); };
  Backward<T>(op, {.q = in(t.q),
                   .k = in(t.k),
                   .v = in(t.v),
                   .out = in(t.out),
                   .log_sum_exp = statistic(t.log_sum_exp),
                   .dout = in(t.dout),
                   .dlog_sum_exp = statistic(t.dlog_sum_exp),
                   .dq = result(t.dq),
                   .dk = result(t.dk),
                   .dv = result(t.dv)})
      .run();
}

template void backward<float>(const Dense&, const AttentionBackward&);
template void backward<double>(const Dense&, const AttentionBackward&);
template void backward<bf16>(const Dense&, const AttentionBackward&);
template void backward<f16>(const Dense&, const AttentionBackward&);

}  // namespace loom::kernels::attn
