#include <cmath>
#include <memory>

#include "engine/core/parallel.h"
#include "engine/core/rounding.h"
#include "engine/kernels/attention_impl.h"
#include "engine/kernels/attention_tiles.h"
#include "engine/kernels/scratch.h"

// Two parallel loops. First every tile of kTile keys is packed once for all query heads that use it. Then every block
// of kTile queries of a head walks its key tiles with an online softmax: scores in base 2 (scale * log2(e) is folded
// in), a running maximum m and sum l a row, and O rescaled by 2^(m_old - m_new) as the next tile is added to it.

namespace loom::kernels::attn {
namespace {

template <class T>
class Forward {
  using M = typename ArithmeticOf<T>::type;
  using Acc = typename M::Acc;
  using Unit = typename M::Unit;
  static constexpr int kWidth = kLanes<Acc>;
  static constexpr std::int64_t kWaveBytes = std::int64_t{1} << 20;
  static constexpr Acc kNone = -std::numeric_limits<Acc>::infinity();

 public:
  Forward(const Dense& op, const T* q, const T* k, const T* v, T* out, Acc* log_sum_exp)
      : op_(op),
        layout_(op),
        packer_(op.head_dim),
        q_(q),
        k_(k),
        v_(v),
        out_(out),
        log_sum_exp_(log_sum_exp),
        scale_(static_cast<Acc>(static_cast<double>(op.scale) * kLog2E)),
        blocks_(ceil_div<std::int64_t>(op.queries, kTile)),
        tiles_(ceil_div<std::int64_t>(op.keys, kTile)) {}

  void run() {
    const std::int64_t head_units = tiles_ * (packer_.columns_units() + packer_.rows_units());
    const std::int64_t kv_units = op_.batch * op_.kv_heads;
    const std::int64_t wave =
        std::clamp<std::int64_t>(kWaveBytes / (head_units * static_cast<std::int64_t>(sizeof(Unit))), 1, kv_units);
    static thread_local Scratch scratch;
    panels_ = scratch.get<Unit>(wave * head_units);
    for (first_kv_ = 0; first_kv_ < kv_units; first_kv_ += wave) {
      const std::int64_t count = std::min(wave, kv_units - first_kv_);
      parallel_for(count * tiles_, [this](std::int64_t i) { pack_keys(first_kv_ + i / tiles_, i % tiles_); });
      parallel_for(count * layout_.group * blocks_, [this](std::int64_t i) {
        const std::int64_t head_unit = first_kv_ * layout_.group + i / blocks_;
        attend(head_unit / op_.heads, head_unit % op_.heads, i % blocks_);
      });
    }
  }

 private:
  // What a block of queries carries from key tile to key tile.
  struct Block {
    Unit* q = nullptr;   // columns layout
    Acc* out = nullptr;  // [kTile][Dp]
    alignas(64) Acc scores[kTile * kTile];
    alignas(64) Unit pairs[M::kPack == 2 ? kTile * kTile / 2 : 1];
    alignas(64) Acc sums[kTile * kWidth] = {};  // l, not yet added up over lanes
    alignas(64) Acc maxima[kTile];
    alignas(64) Acc highest[kTile] = {};  // of the tile at hand
    alignas(64) Acc rescale[kTile] = {};
  };

  Unit* key_panel(std::int64_t kv_unit, std::int64_t tile) const {
    return panels_ + ((kv_unit - first_kv_) * tiles_ + tile) * (packer_.columns_units() + packer_.rows_units());
  }

  void pack_keys(std::int64_t kv_unit, std::int64_t tile) const {
    static thread_local Scratch scratch;
    Unit* staging = scratch.get<Unit>(packer_.staging_units());
    const std::int64_t offset = layout_.kv(kv_unit / op_.kv_heads, kv_unit % op_.kv_heads, tile * kTile);
    const std::int64_t count = std::min<std::int64_t>(kTile, op_.keys - tile * kTile);
    Unit* panel = key_panel(kv_unit, tile);
    Unit* values = panel + packer_.columns_units();
    packer_.pack(k_ + offset, layout_.kv_row, count, staging, nullptr, panel);
    packer_.pack(v_ + offset, layout_.kv_row, count, M::kPack == 1 ? values : staging, values, nullptr);
  }

  void attend(std::int64_t batch, std::int64_t head, std::int64_t block_index) const {
    static thread_local Scratch scratch;
    const std::int64_t first_row = block_index * kTile;
    const std::int64_t count = std::min<std::int64_t>(kTile, op_.queries - first_row);
    const std::int64_t out_elems = kTile * packer_.padded_dim();

    Block block;
    block.out = scratch.get<Acc>(out_elems + packer_.columns_units() + packer_.staging_units());
    block.q = reinterpret_cast<Unit*>(block.out + out_elems);
    packer_.pack(q_ + layout_.q(batch, head, first_row), layout_.q_row, count, block.q + packer_.columns_units(),
                 nullptr, block.q);
    std::fill_n(block.out, out_elems, Acc{0});
    std::fill_n(block.maxima, kTile, kNone);
    if (count < kTile) {  // rows beyond the sequence are multiplied along with their neighbours
      std::fill_n(block.scores, kTile * kTile, Acc{0});
      std::fill(std::begin(block.pairs), std::end(block.pairs), Unit{0});
    }

    const std::int64_t kv_unit = batch * op_.kv_heads + head / layout_.group;
    const std::int64_t seen = op_.causal ? std::min(op_.keys, op_.start + first_row + count) : op_.keys;
    const std::int64_t key_tiles = ceil_div<std::int64_t>(seen, kTile);
    for (std::int64_t tile = 0; tile < key_tiles; ++tile) {
      const Unit* panel = key_panel(kv_unit, tile);
      add_tile(block, Mask::of(op_, first_row, tile * kTile), count, panel, panel + packer_.columns_units());
    }
    finish(block, batch, head, first_row, count);
  }

  void add_tile(Block& block, const Mask& mask, std::int64_t count, const Unit* keys, const Unit* values) const {
    for (std::int64_t row = 0; row < count; row += kScoreRows) score_rows(block, mask, row, keys);
    raise_maxima(block);
    for (std::int64_t row = 0; row < count; row += kScoreRows) soften_rows(block, mask, row);
    const std::int64_t step = packer_.padded_dim();
    const auto span = [&](std::int64_t row, int rows) -> Span {
      return {0, (mask.limit(row + rows - 1) + M::kPack - 1) / M::kPack};
    };
    multiply_wide<M, kTile / M::kPack, 1>(count, step, probabilities(block), values, step, span,
                                          [&](std::int64_t row, std::int64_t column, Vector<Acc> sum) {
                                            Acc* out = block.out + row * step + column;
                                            store(out, load(out) * block.rescale[row] + sum);
                                          });
  }

  // Scores of kScoreRows rows and the maximum of each.
  void score_rows(Block& block, const Mask& mask, std::int64_t row, const Unit* keys) const {
    const int vectors = mask.vectors<Acc>(row + kScoreRows - 1);
    const bool whole = mask.limit(row) >= vectors * kWidth;
    Acc* scores = block.scores + row * kTile;
    Vector<Acc> highest[kScoreRows];
    for (Vector<Acc>& lane : highest) lane = broadcast(kNone);
    multiply_scores<M>(packer_.column_units(), vectors, block.q + row, keys, [&](int i, int j, Vector<Acc> sum) {
      Vector<Acc> score = sum * scale_;
      if (!whole) score = masked(score, j * kWidth, mask.limit(row + i), kNone);
      highest[i] = max(highest[i], score);
      store(scores + i * kTile + j * kWidth, score);
    });
    max_of_rows(highest, block.highest + row);
  }

  static void raise_maxima(Block& block) {
    for (int row = 0; row < kTile; row += kWidth) {
      const Vector<Acc> before = load(block.maxima + row), now = max(before, load(block.highest + row));
      store(block.maxima + row, now);
      store(block.rescale + row, M::exp2(before - now));
    }
  }

  // Probabilities of kScoreRows rows in the place of their scores; zeros where no row of them sees.
  static void soften_rows(Block& block, const Mask& mask, std::int64_t row) {
    constexpr int kMost = kTile / kWidth;
    const int vectors = mask.vectors<Acc>(row + kScoreRows - 1);
    if (vectors == 0) return clear_rows(block, row);
    with_constant<kMost>(vectors, [&](auto constant) {
      constexpr int kVectors = decltype(constant)::value;
      for (std::int64_t r = row; r < row + kScoreRows; ++r) {
        Acc* scores = block.scores + r * kTile;
        const Acc highest = block.maxima[r];
        Vector<Acc> p[kMost] = {};
#pragma GCC unroll 16
        for (int j = 0; j < kVectors; ++j) p[j] = M::exp2(load(scores + j * kWidth) - highest);
        Vector<Acc> sum = load(block.sums + r * kWidth) * block.rescale[r];
#pragma GCC unroll 16
        for (int j = 0; j < kVectors; ++j) sum += p[j];
        store(block.sums + r * kWidth, sum);
#pragma GCC unroll 16
        for (int j = 0; j < kMost; ++j) store_probabilities(block, r * kTile + j * kWidth, p[j]);
      }
    });
  }

  // Probabilities of kScoreRows rows that see nothing of the tile. Their sums stay: raise_maxima() rescaled them by 1.
  static void clear_rows(Block& block, std::int64_t row) {
    for (std::int64_t at = row * kTile; at < (row + kScoreRows) * kTile; at += kWidth) {
      store_probabilities(block, at, Vector<Acc>{});
    }
  }

  // In place, or as bf16 pairs along the keys.
  LOOM_INLINE static void store_probabilities(Block& block, std::int64_t at, Vector<Acc> p) {
    if constexpr (M::kPack == 2) {
      store_pairs(block.pairs + at / 2, p);
    } else {
      store(block.scores + at, p);
    }
  }
  static const Unit* probabilities(const Block& block) {
    if constexpr (M::kPack == 2) {
      return block.pairs;
    } else {
      return block.scores;
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
  std::int64_t first_kv_ = 0;  // of the wave
  Unit* panels_ = nullptr;     // of the wave
};

}  // namespace

template <class T>
void forward(const Dense& op, const void* q, const void* k, const void* v, void* out, void* log_sum_exp) {
  using Acc = typename ArithmeticOf<T>::type::Acc;
  Forward<T>(op, static_cast<const T*>(q), static_cast<const T*>(k), static_cast<const T*>(v), static_cast<T*>(out),
             static_cast<Acc*>(log_sum_exp))
      .run();
}

template void forward<float>(const Dense&, const void*, const void*, const void*, void*, void*);
template void forward<double>(const Dense&, const void*, const void*, const void*, void*, void*);
template void forward<bf16>(const Dense&, const void*, const void*, const void*, void*, void*);
template void forward<f16>(const Dense&, const void*, const void*, const void*, void*, void*);

}  // namespace loom::kernels::attn
