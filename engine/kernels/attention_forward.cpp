#include <cmath>
#include <memory>
#include <numeric>

#include "engine/core/parallel.h"
#include "engine/core/rounding.h"
#include "engine/kernels/attention_impl.h"
#include "engine/kernels/attention_tiles.h"
#include "engine/kernels/scratch.h"

// A block of kTile queries of a head walks the keys in chunks of kChunk with an online softmax: scores in base 2 (scale *
// log2(e) is folded in), a running maximum m and sum l a row, and O rescaled by 2^(m_old - m_new) as the next chunk is
// added to it. Tiles of keys are packed once for all query heads that use them.
//
// Work  where key/value heads are many, each is one task, which packs a tile of keys when the first block sees it. Else
//       two loops: over tiles of keys to pack, then over blocks of queries. Both give the same bits.

namespace loom::kernels::attn {
namespace {

inline constexpr int kChunkTiles = 4;
inline constexpr int kChunk = kChunkTiles * kTile;

template <class T>
class Forward {
  using M = typename ArithmeticOf<T>::type;
  using Acc = typename M::Acc;
  using Unit = typename M::Unit;
  static constexpr int kWidth = kLanes<Acc>;
  static constexpr int kTileVectors = kTile / kWidth;
  static constexpr int kSoftRows = std::lcm(kScoreRows, kWidth);       // rows whose maxima are raised together
  static constexpr int kHeldRows = M::kPack == 2 ? kSoftRows : kTile;  // of scores; probabilities replace them, or not
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
        Ahead<T> ahead;
        if (i + 1 < layout_.group || block + 1 < blocks_) {
          const std::int64_t next = i + 1 < layout_.group ? i + 1 : 0;
          ask_queries(ahead, batch, first_head + next, next == 0 ? block + 1 : block);
        }
        if (i == 0 && packed < tiles_) ask_keys(ahead, kv_unit, packed);
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
        const auto head = [&](std::int64_t task) { return first * layout_.group + task / blocks_; };
        // The last blocks of causal queries see the most keys: they come first.
        const auto block = [&](std::int64_t task) { return blocks_ - 1 - task % blocks_; };
        Ahead<T> ahead;
        if (i + 1 < tasks) ask_queries(ahead, head(i + 1) / op_.heads, head(i + 1) % op_.heads, block(i + 1));
        attend(head(i) / op_.heads, head(i) % op_.heads, block(i),
               panels_at(room + i / blocks_ / layout_.group * head_units()), ahead);
      });
    }
  }

 private:
  // The packed keys and values of a head.
  struct Panels {
    Unit* keys;    // tiles_ of columns_units()
    Unit* values;  // tiles_ of rows_units()
  };
  // What a block of queries carries from chunk to chunk.
  struct Block {
    Unit* q = nullptr;                          // lines layout
    Acc* out = nullptr;                         // [kTile][Dp]
    Acc* scores = nullptr;                      // [kHeldRows][kChunk]
    Unit* probabilities = nullptr;              // [kTile][kChunk / kPack]
    alignas(64) Acc sums[kTile * kWidth] = {};  // l, not yet added up over lanes
    alignas(64) Acc maxima[kTile];
    alignas(64) Acc highest[kTile] = {};  // of the chunk at hand
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

  void ask_queries(Ahead<T>& ahead, std::int64_t batch, std::int64_t head, std::int64_t block) const {
    ahead.add(q_ + layout_.q(batch, head, block * kTile), layout_.q_row, queries_in(block), op_.head_dim);
  }
  void ask_keys(Ahead<T>& ahead, std::int64_t kv_unit, std::int64_t tile) const {
    const std::int64_t offset = layout_.kv(kv_unit / op_.kv_heads, kv_unit % op_.kv_heads, tile * kTile);
    ahead.add(k_ + offset, layout_.kv_row, keys_in(tile), op_.head_dim);
    ahead.add(v_ + offset, layout_.kv_row, keys_in(tile), op_.head_dim);
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

  void attend(std::int64_t batch, std::int64_t head, std::int64_t block_index, const Panels& panels,
              Ahead<T>& ahead) const {
    const std::int64_t first_row = block_index * kTile, count = queries_in(block_index);
    const std::int64_t offset = layout_.q(batch, head, first_row);
    Block block = room();
    packer_.pack_lines(q_ + offset, layout_.q_row, count, block.q);
    ahead.add(out_ + offset, layout_.q_row, count, op_.head_dim);
    std::fill_n(block.maxima, kTile, kNone);
    if (count < kTile) {  // rows beyond the sequence are multiplied along with their neighbours
      std::fill_n(block.scores, kHeldRows * kChunk, Acc{0});
      std::fill(block.probabilities + count * kChunk / M::kPack, block.probabilities + kTile * kChunk / M::kPack,
                Unit{0});
    }
    const std::int64_t seen = tiles_seen(block_index);
    for (std::int64_t tile = 0; tile < seen; tile += kChunkTiles) {
      const Mask mask =
          Mask::of(op_, first_row, tile * kTile, std::min<std::int64_t>(kChunkTiles, seen - tile) * kTile);
      add_chunk(block, mask, count, panels.keys + tile * packer_.columns_units(),
                panels.values + tile * packer_.rows_units(), tile == 0, ahead);
    }
    finish(block, batch, head, first_row, count);
  }

  void add_chunk(Block& block, const Mask& mask, std::int64_t count, const Unit* keys, const Unit* values, bool first,
                 Ahead<T>& ahead) const {
    for (std::int64_t row = 0; row < count; row += kSoftRows) {
      const std::int64_t end = std::min(row + kSoftRows, count);
      Acc* scores = block.scores + (M::kPack == 2 ? 0 : row * kChunk);
      for (std::int64_t r = row; r < end; r += kScoreRows) {
        if (first) ahead.ask(r, kScoreRows);
        score_rows(block, mask, r, keys, scores + (r - row) * kChunk);
      }
      raise_maxima(block, row);
      for (std::int64_t r = row; r < end; r += kScoreRows) {
        soften_rows(block, mask, r, scores + (r - row) * kChunk);
      }
    }
    const std::int64_t step = packer_.padded_dim();
    const auto span = [&](std::int64_t row, int rows) -> Span {
      return {0, (mask.limit(row + rows - 1) + M::kPack - 1) / M::kPack};
    };
    const auto multiply = [&](auto finish) {
      multiply_wide<M, kChunk / M::kPack, 1>(count, step, block.probabilities, values, step, span, finish);
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

  // Scores of kScoreRows rows and the maximum of each.
  void score_rows(Block& block, const Mask& mask, std::int64_t row, const Unit* keys, Acc* scores) const {
    const int vectors = mask.vectors<Acc>(row + kScoreRows - 1);
    alignas(64) Acc lanes[kScoreRows * kWidth];
    std::fill_n(lanes, kScoreRows * kWidth, kNone);
    for (int done = 0; done < vectors; done += kTileVectors, keys += packer_.columns_units(), scores += kTile) {
      const int here = std::min(kTileVectors, vectors - done);
      const auto multiply = [&]<bool kMasked>() {
        const std::int64_t step = packer_.line_units();
        multiply_scores<M>(packer_.column_units(), here, block.q + row * step, step, keys, [&](int first) {
          const std::int64_t column = (done + first) * kWidth;
          return Scores<kMasked>{.to = scores + first * kWidth,
                                 .highest = lanes,
                                 .scale = scale_,
                                 .limit = row + mask.diagonal - column,
                                 .keys = mask.keys - column};
        });
      };
      mask.limit(row) >= (done + here) * kWidth ? multiply.template operator()<false>()
                                                : multiply.template operator()<true>();
    }
    Vector<Acc> highest[kScoreRows];
    for (int i = 0; i < kScoreRows; ++i) highest[i] = load(lanes + i * kWidth);
    max_of_rows(highest, block.highest + row);
  }

  static void raise_maxima(Block& block, std::int64_t first) {
    for (std::int64_t row = first; row < first + kSoftRows; row += kWidth) {
      const Vector<Acc> before = load(block.maxima + row), now = max(before, load(block.highest + row));
      store(block.maxima + row, now);
      store(block.rescale + row, M::exp2(before - now));
    }
  }

  // Probabilities of kScoreRows rows from their scores; zeros where only a later row of a product sees.
  static void soften_rows(Block& block, const Mask& mask, std::int64_t row, Acc* scores) {
    const int vectors = mask.vectors<Acc>(row + kScoreRows - 1), end = mask.vectors<Acc>(row + kScoreRows + 12);
    for (std::int64_t r = row; r < row + kScoreRows; ++r, scores += kChunk) {
      const Vector<Acc> highest = broadcast(block.maxima[r]);
      Vector<Acc> sum = load(block.sums + r * kWidth) * block.rescale[r];
      Unit* to = block.probabilities + r * kChunk / M::kPack;
#pragma GCC unroll 3
      for (int j = 0; j < vectors; ++j) {
        const Vector<Acc> p = M::exp2(load(scores + j * kWidth) - highest);
        sum += p;
        store_probabilities(to, j, p);
      }
      store(block.sums + r * kWidth, sum);
      for (int j = vectors; j < end; ++j) store_probabilities(to, j, Vector<Acc>{});
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
    for (std::int64_t row = 0; row < count; ++row) {
      const Acc sum = sum_of<Acc>(load(block.sums + row * kWidth)), inverse = Acc{1} / sum;
      finish_row(block.out + row * step, inverse, op_.head_dim, out_ + layout_.q(batch, head, first_row + row));
      log_sum_exp[row] = block.maxima[row] * static_cast<Acc>(kLn2) + std::log(sum);
    }
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

}  // namespace

template <class T>
void forward(std::span<const Part> parts, const void* q, const void* k, const void* v, void* out, void* log_sum_exp) {
  using Acc = typename ArithmeticOf<T>::type::Acc;
  const typename Forward<T>::Tensors tensors{static_cast<const T*>(q), static_cast<const T*>(k),
                                             static_cast<const T*>(v), static_cast<T*>(out),
                                             static_cast<Acc*>(log_sum_exp)};
  const std::vector<HeadTask> tasks = key_value_head_tasks(parts);
  if (tasks.empty()) {
    for (const Part& part : parts) Forward<T>(part, tensors).in_two_loops();
  }
  parallel_for(std::ssize(tasks), [&](std::int64_t i) {
    const HeadTask& task = tasks[static_cast<std::size_t>(i)];
    Forward<T>(*task.part, tensors).key_value_head(task.kv_unit);
  });
}

template void forward<float>(std::span<const Part>, const void*, const void*, const void*, void*, void*);
template void forward<double>(std::span<const Part>, const void*, const void*, const void*, void*, void*);
template void forward<bf16>(std::span<const Part>, const void*, const void*, const void*, void*, void*);
template void forward<f16>(std::span<const Part>, const void*, const void*, const void*, void*, void*);

}  // namespace loom::kernels::attn
