#include <functional>
#include <memory>

#include "engine/core/parallel.h"
#include "engine/core/rounding.h"
#include "engine/kernels/attention_impl.h"
#include "engine/kernels/attention_tiles.h"
#include "engine/kernels/scratch.h"

// A query head goes from key tile to key tile, and for each through the query blocks that see it:
//   P = 2^(scale log2(e) Q K^T - lse),  dP = dO V^T,  dS = P * (dP - delta),  delta = rowsum(dO * O) - dlse
//   dV += P^T dO,  dK += dS^T Q,  dQ += dS K            (dQ and dK are multiplied by scale at the end)
// The first key tile sees every query block: they are packed on its way. A query block is written after the last key
// tile that it sees.
//
// Work  on one thread, or where key/value heads are many, each is one task, which adds dK and dV of its query heads in
//       head order. Else each query head is one, which leaves its dK and dV in memory, and a second loop adds them in
//       head order. Both give the same bits.

namespace loom::kernels::attn {
namespace {

template <class T, class M>
class Backward {
  using Acc = typename M::Acc;
  using Unit = typename M::Unit;
  static constexpr int kWidth = kLanes<Acc>;
  static constexpr int kPack = M::kPack;
  // Tiles of a query block and of a key tile: products of bf16 are short, so they are joined.
  static constexpr int kBlockTiles = kPack == 2 ? 2 : 1;
  static constexpr int kKeyTiles = kPack == 2 ? 2 : 1;
  static constexpr int kQueries = kBlockTiles * kTile;
  static constexpr int kKeys = kKeyTiles * kTile;
  static constexpr int kTileVectors = kTile / kWidth;
  static constexpr int kMostRows = 12;  // of accumulators
  static constexpr int kProducts = 3;   // of a pair that prefetch: the products for dV, dK and dQ

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
        step_(packer_.padded_dim()),
        blocks_(ceil_div<std::int64_t>(op.queries, kQueries)),
        tiles_(ceil_div<std::int64_t>(op.keys, kKeys)) {}

  // All query heads of a key/value head.
  void key_value_head(std::int64_t kv_unit) const {
    static thread_local Scratch scratch;
    const std::int64_t batch = kv_unit / op_.kv_heads, first = kv_unit % op_.kv_heads * layout_.group;
    const std::int64_t elems = layout_.group > 1 ? op_.keys * op_.head_dim : 0;
    Acc* sum_dk = scratch.get<Acc>(2 * elems);
    Acc* sum_dv = sum_dk + elems;
    for (std::int64_t i = 0; i < layout_.group; ++i) {
      const bool last = i + 1 == layout_.group;
      head(batch, first + i, last, [&](const Head& h, std::int64_t tile) {
        for (std::int64_t row = 0; row < keys_in(tile); ++row) {
          const std::int64_t at = layout_.kv(batch, first / layout_.group, tile * kKeys + row);
          const std::int64_t sum = elems == 0 ? 0 : (tile * kKeys + row) * op_.head_dim;
          add_row(h.dk + row * step_, scale_, i == 0, last, sum_dk + sum, t_.dk + at);
          add_row(h.dv + row * step_, Acc{1}, i == 0, last, sum_dv + sum, t_.dv + at);
        }
      });
    }
  }

  void by_query_heads() const {
    if (layout_.group == 1) {
      return parallel_for(op_.batch * op_.heads, [this](std::int64_t i) { key_value_head(i); });
    }
    const std::int64_t elems = op_.batch * op_.heads * op_.keys * op_.head_dim;
    static thread_local Scratch scratch;
    Acc* head_dk = scratch.get<Acc>(2 * elems);
    Acc* head_dv = head_dk + elems;
    parallel_for(op_.batch * op_.heads, [&](std::int64_t i) {
      head(i / op_.heads, i % op_.heads, false, [&](const Head& h, std::int64_t tile) {
        const std::int64_t first = layout_.head_key(h.batch, h.head, tile * kKeys);
        for (std::int64_t row = 0; row < keys_in(tile); ++row) {
          const std::int64_t at = first + row * op_.head_dim;
          finish_row(h.dk + row * step_, scale_, op_.head_dim, head_dk + at);
          finish_row(h.dv + row * step_, Acc{1}, op_.head_dim, head_dv + at);
        }
      });
    });
    parallel_for(op_.batch * op_.kv_heads * tiles_, [&](std::int64_t i) {
      add_heads(i / tiles_, i % tiles_, head_dk, t_.dk);
      add_heads(i / tiles_, i % tiles_, head_dv, t_.dv);
    });
  }

 private:
  // Everything of one query head, packed tile by tile; and what one (query block, key tile) needs.
  struct Head {
    std::int64_t batch, head;
    Unit *q_lines, *q_rows, *dout_lines, *dout_rows;  // blocks_ * kBlockTiles tiles each
    Acc* dq;                                          // [blocks_ * kQueries][Dp]
    Acc *lse, *delta;                                 // [blocks_ * kQueries], lse in base 2
    Unit *k_columns, *k_rows, *v_columns;             // kKeyTiles tiles each
    Acc *dk, *dv;                                     // [kKeys][Dp]
    Unit* lines;                                      // room for a tile
    // P and dS: [kQueries][kKeys], or of bf16 kScoreRows rows, which become pairs along the queries and along the keys.
    Acc *p, *ds;
    Unit *p_rows, *ds_rows, *ds_columns;
  };

  // finish(head, tile) takes dk and dv of a tile, and if `writes_keys` writes them where they belong. One function for
  // all callers: copies of it for each of them may be contracted otherwise by the compiler, and give other bits.
  [[gnu::noinline]] void head(std::int64_t batch, std::int64_t head_index, bool writes_keys,
                              const std::function<void(const Head&, std::int64_t tile)>& finish) const {
    const Head h = room(batch, head_index);
    Ahead ahead;
    for (std::int64_t tile = 0; tile < tiles_; ++tile) {
      pack_keys(h, tile);
      const std::int64_t first = first_block(tile);
      if (first >= blocks_) std::fill_n(h.dk, 2 * kKeys * step_, Acc{0});
      for (std::int64_t block = first; block < blocks_; ++block) {
        if (tile == 0) pack_queries(h, block);
        if (tile == 0) look_at_queries(h, block + 1, ahead);
        if (block == std::min(first + (tile == 0), blocks_ - 1)) look_at_tiles(h, tile, writes_keys, ahead);
        ahead.spread(kProducts * wide_steps<M>(step_, kBlockTiles * kKeyTiles * kTile / kPack));
        add_pair(h, block, tile, block == first, ahead);
        if (tile == last_tile(block) && !writes_whole(block)) write_queries(h, block);
      }
      finish(h, tile);
    }
  }

  // The sources from which a block of queries is packed.
  void look_at_queries(const Head& h, std::int64_t block, Ahead& ahead) const {
    ahead.clear();
    if (block >= blocks_) return;
    const std::int64_t at = layout_.q(h.batch, h.head, block * kQueries), count = queries_in(block);
    for (const T* from : {t_.q, t_.dout, t_.out}) ahead.add(from + at, layout_.q_row, op_.head_dim, count);
  }
  // The results written after a tile of keys, the sources of the next tile, and the queries that the tile ends.
  void look_at_tiles(const Head& h, std::int64_t tile, bool writes_keys, Ahead& ahead) const {
    if (tile > 0) ahead.clear();
    const auto keys = [&](const T* from, std::int64_t of) {
      const std::int64_t at = layout_.kv(h.batch, h.head / layout_.group, of * kKeys);
      ahead.add(from + at, layout_.kv_row, op_.head_dim, keys_in(of));
    };
    if (writes_keys) keys(t_.dk, tile), keys(t_.dv, tile);
    if (tile + 1 == tiles_) return;
    keys(t_.k, tile + 1), keys(t_.v, tile + 1);
    const std::int64_t block = first_block(tile + 1);
    if (block >= blocks_) return;
    ahead.add(t_.dq + layout_.q(h.batch, h.head, block * kQueries), layout_.q_row, op_.head_dim, queries_in(block));
  }

  // The first block with a query that sees the tile's first key.
  std::int64_t first_block(std::int64_t tile) const {
    return op_.causal ? std::max<std::int64_t>(0, tile * kKeys - op_.start) / kQueries : 0;
  }
  std::int64_t last_tile(std::int64_t block) const {
    const std::int64_t end = op_.start + block * kQueries + queries_in(block);
    return (op_.causal ? ceil_div<std::int64_t>(std::min(op_.keys, end), kKeys) : tiles_) - 1;
  }

  Head room(std::int64_t batch, std::int64_t head_index) const {
    static thread_local Scratch unit_scratch, acc_scratch;
    const std::int64_t columns = packer_.columns_units(), rows = packer_.rows_units(), lines = packer_.lines_units();
    constexpr std::int64_t kScores = (kPack == 2 ? kScoreRows : kQueries) * kKeys;
    constexpr std::int64_t kPairs = kPack == 2 ? kQueries * kKeys / 2 : 0;
    const auto take = [](auto*& from, std::int64_t count) {
      auto* taken = from;
      from += count;
      return taken;
    };
    Head h{};
    h.batch = batch;
    h.head = head_index;
    const std::int64_t tiles = blocks_ * kBlockTiles;
    Unit* unit =
        unit_scratch.get<Unit>(2 * tiles * (lines + rows) + kKeyTiles * (2 * columns + rows) + lines + 3 * kPairs);
    h.p_rows = take(unit, kPairs);
    h.ds_rows = take(unit, kPairs);
    h.ds_columns = take(unit, kPairs);
    h.lines = take(unit, lines);
    h.k_columns = take(unit, kKeyTiles * columns);
    h.v_columns = take(unit, kKeyTiles * columns);
    h.k_rows = take(unit, kKeyTiles * rows);
    h.q_rows = take(unit, tiles * rows);
    h.dout_rows = take(unit, tiles * rows);
    h.q_lines = kPack == 1 ? h.q_rows : take(unit, tiles * lines);
    h.dout_lines = kPack == 1 ? h.dout_rows : take(unit, tiles * lines);
    Acc* acc = acc_scratch.get<Acc>((blocks_ * kQueries + 2 * kKeys) * step_ + 2 * blocks_ * kQueries + 2 * kScores);
    h.p = take(acc, kScores);
    h.ds = take(acc, kScores);
    h.dk = take(acc, kKeys * step_);
    h.dv = take(acc, kKeys * step_);
    h.lse = take(acc, blocks_ * kQueries);
    h.delta = take(acc, blocks_ * kQueries);
    h.dq = take(acc, blocks_ * kQueries * step_);
    if constexpr (kPack == 1) h.p_rows = h.p, h.ds_rows = h.ds_columns = h.ds;
    return h;
  }

  std::int64_t queries_in(std::int64_t block) const {
    return std::min<std::int64_t>(kQueries, op_.queries - block * kQueries);
  }
  std::int64_t keys_in(std::int64_t tile) const { return std::min<std::int64_t>(kKeys, op_.keys - tile * kKeys); }

  void pack_queries(const Head& h, std::int64_t block) const {
    const std::int64_t first = block * kQueries, count = queries_in(block);
    const std::int64_t offset = layout_.q(h.batch, h.head, first);
    for (int i = 0; i < kBlockTiles; ++i) {
      const std::int64_t left = std::clamp<std::int64_t>(count - i * kTile, 0, kTile);
      const std::int64_t at = offset + i * kTile * layout_.q_row, tile = block * kBlockTiles + i;
      const std::int64_t lines = tile * packer_.lines_units(), rows = tile * packer_.rows_units();
      packer_.pack_lines(t_.q + at, layout_.q_row, left, h.q_lines + lines);
      packer_.pack_rows(h.q_lines + lines, h.q_rows + rows);
      packer_.pack_lines(t_.dout + at, layout_.q_row, left, h.dout_lines + lines);
      packer_.pack_rows(h.dout_lines + lines, h.dout_rows + rows);
    }
    const std::int64_t statistic = layout_.statistic(h.batch, h.head, first);
    for (std::int64_t row = 0; row < kQueries; ++row) {
      Acc &lse = h.lse[first + row], &delta = h.delta[first + row];
      lse = delta = 0;  // padded rows give P = 1, dS = 0
      if (row >= count) continue;
      lse = t_.log_sum_exp[statistic + row] * static_cast<Acc>(kLog2E);
      delta = dot_row(offset + row * layout_.q_row);
      if (t_.dlog_sum_exp != nullptr) delta -= t_.dlog_sum_exp[statistic + row];
    }
  }

  void pack_keys(const Head& h, std::int64_t tile) const {
    for (int i = 0; i < kKeyTiles; ++i) {
      const std::int64_t left = std::clamp<std::int64_t>(keys_in(tile) - i * kTile, 0, kTile);
      const std::int64_t at = layout_.kv(h.batch, h.head / layout_.group, tile * kKeys + i * kTile);
      Unit* rows = h.k_rows + i * packer_.rows_units();
      Unit* lines = kPack == 1 ? rows : h.lines;
      packer_.pack_columns(t_.v + at, layout_.kv_row, left, h.lines, h.v_columns + i * packer_.columns_units());
      packer_.pack_columns(t_.k + at, layout_.kv_row, left, h.lines, h.k_columns + i * packer_.columns_units());
      packer_.pack_lines(t_.k + at, layout_.kv_row, left, lines);
      packer_.pack_rows(lines, rows);
    }
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

  void add_pair(const Head& h, std::int64_t block, std::int64_t tile, bool first, Ahead& ahead) const {
    const Mask mask = Mask::of(op_, block * kQueries, tile * kKeys, kKeys);
    const std::int64_t count = queries_in(block);
    for (std::int64_t row = 0; row < count; row += kScoreRows) {
      const std::int64_t at = (block * kQueries + row) * packer_.line_units();
      const std::int64_t kept = kPack == 2 ? 0 : row * kKeys;
      probabilities(h, h.p + kept, mask, row, h.q_lines + at, h.lse + block * kQueries + row);
      score_gradients(h, h.p + kept, h.ds + kept, mask, row, h.dout_lines + at, h.delta + block * kQueries + row);
      if constexpr (kPack == 2) pair(h, row, vectors_read(mask, row));
    }
    accumulate(h, mask, block, tile, first, count, ahead);
  }

  // Vectors of kScoreRows rows that some row of them sees; and that a product of the rows beside them reads.
  static int vectors_seen(const Mask& mask, std::int64_t row) { return mask.vectors<Acc>(row + kScoreRows - 1); }
  static int vectors_read(const Mask& mask, std::int64_t row) {
    return mask.vectors<Acc>(row + kScoreRows - 1 + kMostRows);
  }

  void probabilities(const Head& h, Acc* p, const Mask& mask, std::int64_t row, const Unit* q, const Acc* lse) const {
    const int vectors = vectors_seen(mask, row), end = vectors_read(mask, row);
    const Acc scale = scale_ * static_cast<Acc>(kLog2E);
    multiply_tiles(vectors, q, h.k_columns, [&](int first) {
      return Each{[=, to = p + first * kWidth](int i, int j, Vector<Acc> sum) {
        store(to + i * kKeys + j * kWidth, M::exp2(sum * scale - lse[i]));
      }};
    });
    for (int i = 0; i < kScoreRows; ++i) {
      const std::int64_t limit = mask.limit(row + i);
      for (int j = static_cast<int>(limit / kWidth); j < end; ++j) {
        Acc* at = p + i * kKeys + j * kWidth;
        store(at, j < vectors ? masked(load(at), j * kWidth, limit, Acc{0}) : Vector<Acc>{});
      }
    }
  }

  void score_gradients(const Head& h, const Acc* p, Acc* ds, const Mask& mask, std::int64_t row, const Unit* dout,
                       const Acc* delta) const {
    const int vectors = vectors_seen(mask, row), end = vectors_read(mask, row);
    multiply_tiles(vectors, dout, h.v_columns, [&](int first) {
      return Each{[=](int i, int j, Vector<Acc> sum) {
        const std::int64_t at = i * kKeys + (first + j) * kWidth;
        store(ds + at, load(p + at) * (sum - delta[i]));
      }};
    });
    for (int i = 0; i < kScoreRows; ++i) {
      for (int j = vectors; j < end; ++j) store(ds + i * kKeys + j * kWidth, Vector<Acc>{});
    }
  }

  template <class FinishOf>
  void multiply_tiles(int vectors, const Unit* a, const Unit* b, const FinishOf& finish) const {
    for (int done = 0; done < vectors; done += kTileVectors, b += packer_.columns_units()) {
      multiply_scores<M>(packer_.column_units(), std::min(kTileVectors, vectors - done), a, packer_.line_units(), b,
                         [&](int first) { return finish(done + first); });
    }
  }

  // kScoreRows rows as pairs.
  static void pair(const Head& h, std::int64_t row, int vectors) {
    for (int i = 0; i < kScoreRows; i += 2) {
      const Acc *p = h.p + i * kKeys, *ds = h.ds + i * kKeys;
      const std::int64_t paired = (row + i) / 2 * kKeys;
      for (int j = 0; j < vectors * kWidth; j += kWidth) {
        const Vector<Acc> low = load(ds + j), high = load(ds + kKeys + j);
        store(h.p_rows + paired + j, interleave_pairs(load(p + j), load(p + kKeys + j)));
        store(h.ds_rows + paired + j, interleave_pairs(low, high));
        store_pairs(h.ds_columns + paired + j / 2, low);
        store_pairs(h.ds_columns + paired + (kKeys + j) / 2, high);
      }
    }
  }

  void accumulate(const Head& h, const Mask& mask, std::int64_t block, std::int64_t tile, bool first,
                  std::int64_t count, Ahead& ahead) const {
    const std::int64_t rows = block * kBlockTiles * packer_.rows_units();
    // Key j is seen by query rows from j - diagonal + 1 on.
    const auto queries = [&](std::int64_t key, int) -> Span {
      return {std::max<std::int64_t>(0, key - mask.diagonal + 1) / kPack, (count + kPack - 1) / kPack};
    };
    const auto keys = [&](std::int64_t row, int more) -> Span {
      return {0, (mask.limit(row + more - 1) + kPack - 1) / kPack};
    };
    const auto multiply_keys = [&](const Unit* scores, const Unit* from, Acc* to) {
      sum_into(to, first, [&](auto finish) {
        multiply_wide<M, 1, kKeys>(mask.keys, step_, scores, from + rows, step_, ahead, queries, finish);
      });
    };
    multiply_keys(h.p_rows, h.dout_rows, h.dv);
    multiply_keys(h.ds_rows, h.q_rows, h.dk);
    if (tile == last_tile(block) && writes_whole(block)) {
      multiply_wide<M, kKeys / kPack, 1>(
          count, step_, h.ds_columns, h.k_rows, step_, ahead, keys, [&](std::int64_t row, std::int64_t column) {
            const std::int64_t query = block * kQueries + row;
            return QueryGradients{.before = tile == 0 ? nullptr : h.dq + query * step_ + column,
                                  .scale = scale_,
                                  .step = step_,
                                  .to = t_.dq + layout_.q(h.batch, h.head, query) + column,
                                  .to_step = layout_.q_row};
          });
      return;
    }
    sum_into(h.dq + block * kQueries * step_, tile == 0, [&](auto finish) {
      multiply_wide<M, kKeys / kPack, 1>(count, step_, h.ds_columns, h.k_rows, step_, ahead, keys, finish);
    });
  }

  // The last sums of a block of dQ, added to those before, times scale, rounded.
  struct QueryGradients {
    const Acc* before;
    Acc scale;
    std::int64_t step;
    T* to;
    std::int64_t to_step;

    template <int kRows, int kVectors>
    LOOM_INLINE void operator()(Vector<Acc> (&sum)[kRows][kVectors]) const {
      if (before != nullptr) {
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
          for (int j = 0; j < kVectors; ++j) sum[i][j] += load(before + i * step + j * kWidth);
        }
      }
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
        for (int j = 0; j < kVectors; ++j) store_rounded(to + i * to_step + j * kWidth, sum[i][j] * scale);
      }
    }
  };
  // Whether the products of a block end where its rows and columns do.
  bool writes_whole(std::int64_t block) const { return queries_in(block) == kQueries && op_.head_dim == step_; }

  // Calls multiply(finish) with sums that replace `to`, or are added to it.
  template <class Multiply>
  void sum_into(Acc* to, bool replaces, const Multiply& multiply) const {
    const std::int64_t step = step_;
    if (replaces) {
      multiply([=](std::int64_t row, std::int64_t column) { return replace(to + row * step + column, step); });
    } else {
      multiply([=](std::int64_t row, std::int64_t column) { return add_to(to + row * step + column, step); });
    }
  }

  void write_queries(const Head& h, std::int64_t block) const {
    for (std::int64_t row = block * kQueries; row < block * kQueries + queries_in(block); ++row) {
      finish_row(h.dq + row * step_, scale_, op_.head_dim, t_.dq + layout_.q(h.batch, h.head, row));
    }
  }

  // factor * from onto the sum of the heads before; the last head's goes to `to`.
  void add_row(Acc* from, Acc factor, bool first, bool last, Acc* sum, T* to) const {
    if (first && last) return finish_row(from, factor, op_.head_dim, to);
    if (first) return finish_row(from, factor, op_.head_dim, sum);
    for (std::int64_t i = 0; i < op_.head_dim; ++i) from[i] *= factor;  // rounded, as add_heads() finds it
    for (std::int64_t i = 0; i < op_.head_dim; ++i) sum[i] += from[i];
    if (last) finish_row(sum, Acc{1}, op_.head_dim, to);
  }

  // A tile of a key/value head: what its query heads left, added in head order.
  void add_heads(std::int64_t kv_unit, std::int64_t tile, const Acc* from, T* to) const {
    static thread_local Scratch scratch;
    const std::int64_t batch = kv_unit / op_.kv_heads, kv_head = kv_unit % op_.kv_heads;
    const std::int64_t elems = keys_in(tile) * op_.head_dim;
    Acc* sum = scratch.get<Acc>(elems);
    for (std::int64_t i = 0; i < layout_.group; ++i) {
      const Acc* head = from + layout_.head_key(batch, kv_head * layout_.group + i, tile * kKeys);
      for (std::int64_t e = 0; e < elems; ++e) sum[e] = i == 0 ? head[e] : sum[e] + head[e];
    }
    to += layout_.kv(batch, kv_head, tile * kKeys);
    for (std::int64_t row = 0; row < keys_in(tile); ++row) {
      finish_row(sum + row * op_.head_dim, Acc{1}, op_.head_dim, to + row * layout_.kv_row);
    }
  }

  const Dense& op_;
  const Layout layout_;
  const Packer<M, T> packer_;
  const Tensors t_;
  const Acc scale_;
  const std::int64_t step_;    // Dp
  const std::int64_t blocks_;  // of queries
  const std::int64_t tiles_;   // of keys
};

template <class T, class M>
void differentiate_parts(std::span<const Part> parts, const AttentionBackward& t) {
  using Acc = typename M::Acc;
  const auto in = [](const void* tensor) { return static_cast<const T*>(tensor); };
  const auto statistic = [](const void* tensor) { return static_cast<const Acc*>(tensor); };
  const auto result = [](void* tensor) { return static_cast<T*>(tensor); };
  const auto of = [&](const Part& part) {
    const Acc* dlog_sum_exp = statistic(t.dlog_sum_exp);
    return Backward<T, M>(part.op, {.q = in(t.q) + part.query,
                                    .k = in(t.k) + part.key,
                                    .v = in(t.v) + part.key,
                                    .out = in(t.out) + part.query,
                                    .log_sum_exp = statistic(t.log_sum_exp) + part.statistic,
                                    .dout = in(t.dout) + part.query,
                                    .dlog_sum_exp = dlog_sum_exp == nullptr ? nullptr : dlog_sum_exp + part.statistic,
                                    .dq = result(t.dq) + part.query,
                                    .dk = result(t.dk) + part.key,
                                    .dv = result(t.dv) + part.key});
  };
  const std::vector<HeadTask> tasks = key_value_head_tasks(parts);
  if (tasks.empty()) {
    for (const Part& part : parts) of(part).by_query_heads();
  }
  parallel_for(std::ssize(tasks), [&](std::int64_t i) {
    const HeadTask& task = tasks[static_cast<std::size_t>(i)];
    of(*task.part).key_value_head(task.kv_unit);
  });
}

}  // namespace

template <class T>
void backward_parts(std::span<const Part> parts, Bf16Products products, const AttentionBackward& tensors) {
  with_arithmetic<T>(products, [&](auto arithmetic) { differentiate_parts<T, decltype(arithmetic)>(parts, tensors); });
}

template void backward_parts<float>(std::span<const Part>, Bf16Products, const AttentionBackward&);
template void backward_parts<double>(std::span<const Part>, Bf16Products, const AttentionBackward&);
template void backward_parts<bf16>(std::span<const Part>, Bf16Products, const AttentionBackward&);
template void backward_parts<f16>(std::span<const Part>, Bf16Products, const AttentionBackward&);

}  // namespace loom::kernels::attn
