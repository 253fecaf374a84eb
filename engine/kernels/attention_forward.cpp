#include <memory>
#include <numeric>

#include "engine/core/parallel.h"
#include "engine/core/rounding.h"
#include "engine/kernels/attention_impl.h"
#include "engine/kernels/attention_tiles.h"
#include "engine/kernels/scratch.h"

// A block of kTile queries of a head walks the keys in chunks of kChunk with an online softmax: scores in base 2 (scale
// * log2(e) is folded in), a running maximum m and sum l a row, and O rescaled by 2^(m_old - m_new) as the next chunk
// is added to it. Tiles of keys are packed once for all query heads that use them.
//
// Work  on one thread, or where key/value heads are many, each is one task, which packs a tile of keys when the first
//       block sees it. Else two loops: over tiles of keys to pack, then over blocks of queries. Both give the same
//       bits.

namespace loom::kernels::attn {
namespace {

inline constexpr int kChunkTiles = 8;
inline constexpr int kChunk = kChunkTiles * kTile;
// Tile by tile bf16 is a little more exact (0.4 % less error at 96 keys), and rows of so few tiles take little time.
inline constexpr std::int64_t kShortTiles = 2;

template <class T, class M>
class Forward {
  using Acc = typename M::Acc;
  using Unit = typename M::Unit;
  static constexpr int kWidth = kLanes<Acc>;
  static constexpr int kTileVectors = kTile / kWidth;
  static constexpr int kSoftRows = std::lcm(kScoreRows, kWidth);  // rows whose maxima are raised together
  static constexpr int kHeldRows =
      M::kPack == 2 ? 2 * kSoftRows : kTile;  // of scores; probabilities replace them, or not
  static constexpr std::int64_t kWaveBytes = std::int64_t{1} << 20;
  static constexpr Acc kNone = -std::numeric_limits<Acc>::infinity();

 public:
  struct Tensors {
    const T *q, *k, *v;
    T* out;
    Acc* log_sum_exp;
  };

  Forward(const Part& part, const Tensors& tensors)
      : op_(part.op),
        layout_(part.op),
        packer_(op_.head_dim),
        q_(tensors.q + part.query),
        k_(tensors.k + part.key),
        v_(tensors.v + part.key),
        out_(tensors.out + part.query),
        log_sum_exp_(tensors.log_sum_exp + part.statistic),
        scale_(static_cast<Acc>(static_cast<double>(op_.scale) * kLog2E)),
        blocks_(ceil_div<std::int64_t>(op_.queries, kTile)),
        tiles_(ceil_div<std::int64_t>(op_.keys, kTile)) {}

  // All query heads of a key/value head.
  void key_value_head(std::int64_t kv_unit) const {
    static thread_local Scratch scratch;
    const Panels panels = panels_at(scratch.get<Unit>(head_units()));
    const std::int64_t batch = kv_unit / op_.kv_heads, first_head = kv_unit % op_.kv_heads * layout_.group;
    std::int64_t packed = 0;
    for (std::int64_t block = 0; block < blocks_; ++block) {
      for (const std::int64_t end = tiles_seen(block); packed < end; ++packed) pack_keys(kv_unit, packed, panels);
      for (std::int64_t i = 0; i < layout_.group; ++i) {
        Ahead ahead;
        look_ahead(kv_unit, i, block, packed, ahead);
        attend(batch, first_head + i, block, panels, ahead);
      }
    }
  }

  void in_two_loops() const {
    const std::int64_t kv_units = op_.batch * op_.kv_heads;
    const std::int64_t wave =
        std::clamp<std::int64_t>(kWaveBytes / (head_units() * static_cast<std::int64_t>(sizeof(Unit))), 1, kv_units);
    static thread_local Scratch scratch;
    Unit* room = scratch.get<Unit>(wave * head_units());
    for (std::int64_t first = 0; first < kv_units; first += wave) {
      const std::int64_t count = std::min(wave, kv_units - first);
      parallel_for(count * tiles_, [&](std::int64_t i) {
        pack_keys(first + i / tiles_, i % tiles_, panels_at(room + i / tiles_ * head_units()));
      });
      const std::int64_t tasks = count * layout_.group * blocks_;
      parallel_for(tasks, [&](std::int64_t i) {
        const std::int64_t head = first * layout_.group + i / blocks_;
        const std::int64_t block = blocks_ - 1 - i % blocks_;  // causal queries see the more keys the later they are
        Ahead ahead;
        if (block > 0) look_at_queries(head / op_.heads, head % op_.heads, block - 1, ahead);
        attend(head / op_.heads, head % op_.heads, block, panels_at(room + i / blocks_ / layout_.group * head_units()),
               ahead);
      });
    }
  }

 private:
  // The packed keys and values of a head.
  struct Panels {
    Unit* keys;    // tiles_ of columns_units()
    Unit* values;  // tiles_ of rows_units()
  };
  // The state of a block of queries between chunks.
  struct Block {
    Unit* q = nullptr;                          // lines layout
    Acc* out = nullptr;                         // [kTile][Dp]
    Acc* scores = nullptr;                      // [kHeldRows][kChunk]
    Unit* probabilities = nullptr;              // [kTile][kChunk / kPack]
    alignas(64) Acc sums[kTile * kWidth] = {};  // l, not yet added up over lanes
    alignas(64) Acc maxima[kTile];
    alignas(64) Acc rescale[kTile] = {};
  };

  std::int64_t head_units() const { return tiles_ * (packer_.columns_units() + packer_.rows_units()); }
  Panels panels_at(Unit* room) const { return {room, room + tiles_ * packer_.columns_units()}; }

  std::int64_t queries_in(std::int64_t block) const {
    return std::min<std::int64_t>(kTile, op_.queries - block * kTile);
  }
  std::int64_t keys_in(std::int64_t tile) const { return std::min<std::int64_t>(kTile, op_.keys - tile * kTile); }
  std::int64_t tiles_seen(std::int64_t block) const {
    const std::int64_t end = op_.start + block * kTile + queries_in(block);
    return op_.causal ? ceil_div<std::int64_t>(std::min(op_.keys, end), kTile) : tiles_;
  }

  // The work after a block of query head `i` of the group, with `packed` tiles of keys packed: the same block of the
  // next head; else the next block, and the keys that it sees first; else the first block of the next key/value head,
  // which this thread may or may not get.
  void look_ahead(std::int64_t kv_unit, std::int64_t i, std::int64_t block, std::int64_t packed, Ahead& ahead) const {
    if (++i == layout_.group) {
      i = 0;
      if (++block == blocks_) {
        if (++kv_unit == op_.batch * op_.kv_heads) return;
        block = packed = 0;
      }
    }
    const std::int64_t batch = kv_unit / op_.kv_heads, kv_head = kv_unit % op_.kv_heads;
    if (i == 0) {
      const std::int64_t at = layout_.kv(batch, kv_head, packed * kTile);
      const std::int64_t count = std::min(op_.keys, tiles_seen(block) * kTile) - packed * kTile;
      ahead.add(k_ + at, layout_.kv_row, op_.head_dim, count);
      ahead.add(v_ + at, layout_.kv_row, op_.head_dim, count);
    }
    look_at_queries(batch, kv_head * layout_.group + i, block, ahead);
  }
  void look_at_queries(std::int64_t batch, std::int64_t head, std::int64_t block, Ahead& ahead) const {
    const std::int64_t at = layout_.q(batch, head, block * kTile);
    ahead.add(q_ + at, layout_.q_row, op_.head_dim, queries_in(block));
    ahead.add(out_ + at, layout_.q_row, op_.head_dim, queries_in(block));
  }

  void pack_keys(std::int64_t kv_unit, std::int64_t tile, const Panels& panels) const {
    static thread_local Scratch scratch;
    Unit* lines = scratch.get<Unit>(packer_.lines_units());
    const std::int64_t offset = layout_.kv(kv_unit / op_.kv_heads, kv_unit % op_.kv_heads, tile * kTile);
    Unit* values = panels.values + tile * packer_.rows_units();
    packer_.pack_columns(k_ + offset, layout_.kv_row, keys_in(tile), lines,
                         panels.keys + tile * packer_.columns_units());
    if constexpr (M::kPack == 1) lines = values;
    packer_.pack_lines(v_ + offset, layout_.kv_row, keys_in(tile), lines);
    packer_.pack_rows(lines, values);
  }

  Block room() const {
    static thread_local Scratch acc_scratch, unit_scratch;
    constexpr std::int64_t kHeld = kHeldRows * kChunk;
    Block block;
    block.scores = acc_scratch.get<Acc>(kHeld + kTile * packer_.padded_dim());
    block.out = block.scores + kHeld;
    const std::int64_t units = packer_.lines_units();
    if constexpr (M::kPack == 2) {
      block.probabilities = unit_scratch.get<Unit>(kTile * kChunk / 2 + units);
      block.q = block.probabilities + kTile * kChunk / 2;
    } else {
      block.q = unit_scratch.get<Unit>(units);
      block.probabilities = block.scores;
    }
    return block;
  }

  // `ahead` is the work after it.
  void attend(std::int64_t batch, std::int64_t head, std::int64_t block_index, const Panels& panels,
              Ahead& ahead) const {
    const std::int64_t first_row = block_index * kTile, count = queries_in(block_index);
    const std::int64_t offset = layout_.q(batch, head, first_row);
    Block block = room();
    packer_.pack_lines(q_ + offset, layout_.q_row, count, block.q);
    std::fill_n(block.maxima, kTile, kNone);
    if (count < kTile) {  // rows beyond the sequence are multiplied along with their neighbours
      const std::int64_t held = M::kPack == 1 ? count : 0;
      std::fill_n(block.scores + held * kChunk, (kHeldRows - held) * kChunk, Acc{0});
      std::fill(block.probabilities + count * kChunk / M::kPack, block.probabilities + kTile * kChunk / M::kPack,
                Unit{0});
    }
    const std::int64_t seen = tiles_seen(block_index);
    ahead.spread(wide_steps<M>(packer_.padded_dim(), seen * kTile / M::kPack));
    const std::int64_t chunk = M::kPack == 2 && seen <= kShortTiles ? 1 : kChunkTiles;
    for (std::int64_t tile = 0; tile < seen; tile += chunk) {
      const Mask mask = Mask::of(op_, first_row, tile * kTile, std::min(chunk, seen - tile) * kTile);
      add_chunk(block, mask, count, panels.keys + tile * packer_.columns_units(),
                panels.values + tile * packer_.rows_units(), tile == 0, ahead);
    }
    finish(block, batch, head, first_row, count);
  }

  void add_chunk(Block& block, const Mask& mask, std::int64_t count, const Unit* keys, const Unit* values, bool first,
                 Ahead& ahead) const {
    add_probabilities(block, mask, count, keys);
    const std::int64_t step = packer_.padded_dim();
    const auto span = [&](std::int64_t row, int rows) -> Span {
      return {0, (mask.limit(row + rows - 1) + M::kPack - 1) / M::kPack};
    };
    const auto multiply = [&](auto finish) {
      multiply_wide<M, kChunk / M::kPack, 1>(count, step, block.probabilities, values, step, ahead, span, finish);
    };
    if (first) {
      multiply([&](std::int64_t row, std::int64_t column) { return replace(block.out + row * step + column, step); });
    } else {
      multiply([&](std::int64_t row, std::int64_t column) {
        return add_to_scaled(block.out + row * step + column, step, block.rescale + row);
      });
    }
  }

  // Scores go to memory, and their maxima a lane to `highest`. Row i counts columns below limit + i.
  template <bool kMasked>
  struct Scores {
    Acc* to;
    Acc* highest;  // [kScoreRows][kWidth]
    Acc scale;
    std::int64_t limit, keys;

    template <int kVectors>
    LOOM_INLINE void operator()(Vector<Acc> (&sum)[kScoreRows][kVectors]) const {
#pragma GCC unroll 16
      for (int i = 0; i < kScoreRows; ++i) {
        Vector<Acc> best = load(highest + i * kWidth);
#pragma GCC unroll 8
        for (int j = 0; j < kVectors; ++j) {
          Vector<Acc> score = sum[i][j] * scale;
          if constexpr (kMasked) score = masked(score, j * kWidth, std::min(limit + i, keys), kNone);
          best = max(best, score);
          store(to + i * kChunk + j * kWidth, score);
        }
        store(highest + i * kWidth, best);
      }
    }
  };

  // The scores of kSoftRows rows are made while the previous rows' scores become probabilities, tile by tile: products
  // and exponentials use different parts of the processor.
  void add_probabilities(Block& block, const Mask& mask, std::int64_t count, const Unit* keys) const {
    alignas(64) Acc highest[kSoftRows * kWidth];
    for (std::int64_t row = 0; row < count + kSoftRows; row += kSoftRows) {
      std::fill_n(highest, kSoftRows * kWidth, kNone);
      const int vectors = mask.vectors<Acc>(row + kSoftRows - 1);
      const Unit* panel = keys;
      for (int first = 0; first < vectors; first += kTileVectors, panel += packer_.columns_units()) {
        for (std::int64_t r = row; r < row + kSoftRows; r += kScoreRows) {
          const std::int64_t before = r - kSoftRows;
          if (r < count && before >= 0 &&
              score_and_soften(block, mask, r, first, panel, highest + (r - row) * kWidth)) {
            continue;
          }
          if (r < count) score_rows(block, mask, r, first, panel, highest + (r - row) * kWidth);
          if (before >= 0 && before < count) soften_rows(block, mask, before, first);
        }
      }
      if (row < count) raise_maxima(block, row, highest);
    }
  }

  static Acc* scores_of(const Block& block, std::int64_t row) { return block.scores + row % kHeldRows * kChunk; }

  // kScoreRows rows of a whole tile become probabilities, a vector a step.
  struct Soften {
    static constexpr int kSteps = kScoreRows * kTileVectors;
    const Acc* scores;
    const Acc* maxima;
    Acc* sums;
    Unit* to;

    LOOM_INLINE void operator()([[maybe_unused]] int step) const {
#if defined(__AVX512DQ__)
      if constexpr (sizeof(Acc) == 4) {
        const int row = step % kScoreRows;
        const std::int64_t at = row * kChunk + step / kScoreRows * kWidth;
        const Vector<Acc> p = M::exp2_beside(load(scores + at) - maxima[row]);
        store(sums + row * kWidth, load(sums + row * kWidth) + p);
        store_probabilities(to + at / M::kPack, 0, p);
      }
#endif
    }
  };

  // score_rows() of `row` and soften_rows() of kSoftRows before, at once; false where one of them is not of a whole
  // tile.
  bool score_and_soften([[maybe_unused]] Block& block, [[maybe_unused]] const Mask& mask,
                        [[maybe_unused]] std::int64_t row, [[maybe_unused]] int first,
                        [[maybe_unused]] const Unit* keys, [[maybe_unused]] Acc* highest) const {
#if defined(__AVX512DQ__)
    if constexpr (sizeof(Acc) == 4) {
      const std::int64_t before = row - kSoftRows;
      if (mask.limit(before) < (first + kTileVectors) * kWidth) return false;
      const std::int64_t step = packer_.line_units();
      const Scores<false> scores{
          .to = scores_of(block, row) + first * kWidth, .highest = highest, .scale = scale_, .limit = 0, .keys = 0};
      const Soften soften{.scores = scores_of(block, before) + first * kWidth,
                          .maxima = block.maxima + before,
                          .sums = block.sums + before * kWidth,
                          .to = block.probabilities + (before * kChunk + first * kWidth) / M::kPack};
      multiply_registers<M, kScoreRows, kTileVectors, 1>({0, packer_.column_units()}, block.q + row * step, step, keys,
                                                         kTile, scores, soften);
      return true;
    }
#endif
    return false;
  }

  // Scores of kScoreRows rows and the tile from vector `first` on, and what they raise `highest` to.
  void score_rows(Block& block, const Mask& mask, std::int64_t row, int first, const Unit* keys, Acc* highest) const {
    const int vectors = std::min(kTileVectors, mask.vectors<Acc>(row + kScoreRows - 1) - first);
    if (vectors <= 0) return;
    const std::int64_t step = packer_.line_units();
    const auto multiply = [&]<bool kMasked>() {
      multiply_scores<M>(packer_.column_units(), vectors, block.q + row * step, step, keys, [&](int vector) {
        const std::int64_t column = (first + vector) * kWidth;
        return Scores<kMasked>{.to = scores_of(block, row) + column,
                               .highest = highest,
                               .scale = scale_,
                               .limit = row + mask.diagonal - column,
                               .keys = mask.keys - column};
      });
    };
    mask.limit(row) >= (first + vectors) * kWidth ? multiply.template operator()<false>()
                                                  : multiply.template operator()<true>();
  }

  // For kSoftRows rows: m, the factor of their results so far, and l times this factor.
  static void raise_maxima(Block& block, std::int64_t first, const Acc* lanes) {
    alignas(64) Acc highest[kSoftRows];
    for (int row = 0; row < kSoftRows; row += kScoreRows) {
      Vector<Acc> rows[kScoreRows];
      for (int i = 0; i < kScoreRows; ++i) rows[i] = load(lanes + (row + i) * kWidth);
      max_of_rows(rows, highest + row);
    }
    for (int row = 0; row < kSoftRows; row += kWidth) {
      const Vector<Acc> before = load(block.maxima + first + row), now = max(before, load(highest + row));
      store(block.maxima + first + row, now);
      store(block.rescale + first + row, M::exp2(before - now));
    }
    for (std::int64_t row = first; row < first + kSoftRows; ++row) {
      Acc* sums = block.sums + row * kWidth;
      store(sums, load(sums) * block.rescale[row]);
    }
  }

  // Probabilities of kScoreRows rows from their scores in the tile from vector `first` on; zeros where only a later row
  // of a product sees.
  static void soften_rows(Block& block, const Mask& mask, std::int64_t row, int first) {
    constexpr int kMostRows = 12;  // of a product
    const int vectors = std::min(kTileVectors, mask.vectors<Acc>(row + kScoreRows - 1) - first);
    const int end = std::min(kTileVectors, mask.vectors<Acc>(row + kScoreRows - 1 + kMostRows) - first);
    const Acc* scores = scores_of(block, row) + first * kWidth;
    for (std::int64_t r = row; r < row + kScoreRows; ++r, scores += kChunk) {
      const Vector<Acc> highest = broadcast(block.maxima[r]);
      Unit* to = block.probabilities + (r * kChunk + first * kWidth) / M::kPack;
      Vector<Acc> sum = load(block.sums + r * kWidth);
      if (vectors == kTileVectors) [[likely]] {
        Vector<Acc> p[kTileVectors];
#pragma GCC unroll 16
        for (int j = 0; j < kTileVectors; ++j) p[j] = M::exp2(load(scores + j * kWidth) - highest);
#pragma GCC unroll 16
        for (int j = 0; j < kTileVectors; ++j) {
          sum += p[j];
          store_probabilities(to, j, p[j]);
        }
      } else {
        for (int j = 0; j < vectors; ++j) {
          const Vector<Acc> p = M::exp2(load(scores + j * kWidth) - highest);
          sum += p;
          store_probabilities(to, j, p);
        }
        for (int j = std::max(0, vectors); j < end; ++j) store_probabilities(to, j, Vector<Acc>{});
      }
      store(block.sums + r * kWidth, sum);
    }
  }

  // Vector j of a row, as it is or as bf16 pairs along the keys.
  LOOM_INLINE static void store_probabilities(Unit* row, int j, Vector<Acc> p) {
    if constexpr (M::kPack == 2) {
      store_pairs(row + j * kWidth / 2, p);
    } else {
      store(row + j * kWidth, p);
    }
  }

  void finish(Block& block, std::int64_t batch, std::int64_t head, std::int64_t first_row, std::int64_t count) const {
    const std::int64_t step = packer_.padded_dim();
    Acc* log_sum_exp = log_sum_exp_ + layout_.statistic(batch, head, first_row);
    alignas(64) Acc sums[kTile];
    for (int row = 0; row < kTile; ++row) sums[row] = sum_of<Acc>(load(block.sums + row * kWidth));
    for (std::int64_t row = 0; row < count; ++row) {
      finish_row(block.out + row * step, Acc{1} / sums[row], op_.head_dim,
                 out_ + layout_.q(batch, head, first_row + row));
    }
    for (int row = 0; row < kTile; row += kWidth)
      store(sums + row, load(block.maxima + row) * static_cast<Acc>(kLn2) + log(load(sums + row)));
    std::copy_n(sums, count, log_sum_exp);
  }

  const Dense& op_;
  const Layout layout_;
  const Packer<M, T> packer_;
  const T* const q_;
  const T* const k_;
  const T* const v_;
  T* const out_;
  Acc* const log_sum_exp_;
  const Acc scale_;
  const std::int64_t blocks_;  // of queries
  const std::int64_t tiles_;   // of keys
};

template <class T, class M>
void attend_parts(std::span<const Part> parts, const ForwardTensors& t) {
  const typename Forward<T, M>::Tensors tensors{static_cast<const T*>(t.q), static_cast<const T*>(t.k),
                                                static_cast<const T*>(t.v), static_cast<T*>(t.out),
                                                static_cast<typename M::Acc*>(t.log_sum_exp)};
  const std::vector<HeadTask> tasks = key_value_head_tasks(parts);
  if (tasks.empty()) {
    for (const Part& part : parts) Forward<T, M>(part, tensors).in_two_loops();
  }
  parallel_for(std::ssize(tasks), [&](std::int64_t i) {
    const HeadTask& task = tasks[static_cast<std::size_t>(i)];
    Forward<T, M>(*task.part, tensors).key_value_head(task.kv_unit);
  });
}

}  // namespace

template <class T>
void forward_parts(std::span<const Part> parts, Bf16Products products, const ForwardTensors& tensors) {
  with_arithmetic<T>(products, [&](auto arithmetic) { attend_parts<T, decltype(arithmetic)>(parts, tensors); });
}

template void forward_parts<float>(std::span<const Part>, Bf16Products, const ForwardTensors&);
template void forward_parts<double>(std::span<const Part>, Bf16Products, const ForwardTensors&);
template void forward_parts<bf16>(std::span<const Part>, Bf16Products, const ForwardTensors&);
template void forward_parts<f16>(std::span<const Part>, Bf16Products, const ForwardTensors&);

}  // namespace loom::kernels::attn
