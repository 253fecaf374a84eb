// Tiles of attention: how operands are laid out, and products of tiles from registers. Private to engine/kernels.
//
// Letters   kTile rows (queries) and kTile columns (keys) a tile; Dp = head dim rounded up to whole vectors, padded
//           with zeros.
// Layouts   of a tile X of kTile rows, in units (attention_simd.h):
//             rows     [kTile / kPack][Dp]          row-major, kPack consecutive rows in a unit
//             columns  [ceil(D / kPack)][kTile]     transposed, kPack consecutive columns in a unit
//             lines    [kTile][Dp / kPack]          row-major, kPack columns in a unit; `rows` if kPack is 1
// Products  C[i][j] = sum over k of A(i, k) * B(k, j); B is read as vectors along j, A as single units.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "engine/kernels/attention.h"
#include "engine/kernels/attention_prefetch.h"
#include "engine/kernels/attention_simd.h"
#include "engine/kernels/convert.h"
#include "engine/kernels/simd.h"

namespace loom::kernels::attn {

inline constexpr int kTile = 48;

inline constexpr int kMostVectors = kRegisters == 32 ? 4 : 2;
// Rows of accumulators beside `vectors` columns of them: they fill the registers; each divides kTile.
constexpr int rows_beside(int vectors) {
  if (kRegisters == 32) return vectors == 4 ? 6 : vectors == 3 ? 8 : 12;
  return vectors == 2 ? 6 : 8;
}

template <class T>
constexpr std::int64_t padded(std::int64_t head_dim) {
  return (head_dim + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
}

struct Span {
  std::int64_t begin;
  std::int64_t end;
};

// Nothing beside a product.
struct Alone {
  static constexpr int kSteps = 0;
  LOOM_INLINE void operator()(int /*step*/) const {}
};

// kRows x kVectors accumulators over k in `span`, then finish(sums). A(i, k) is at a[i * row_step + k * kStep]. Steps 0
// ... kSteps - 1 of `beside` run between the steps of the product: work for the units of the processor that it leaves
// idle; or `beside` is a Prefetch. A separate function: inlined into its callers, the accumulators would not stay in
// registers. It takes `beside` and `finish` by reference: a copy on the stack is made of vectors wider than the words
// just stored there, and such a load waits until all stores before it are done (4 % of the forward).
template <class M, int kRows, int kVectors, int kStep, class RowStep, class Finish, class Beside = Alone>
[[gnu::noinline]] void multiply_registers(Span span, const typename M::Unit* a, RowStep row_step,
                                          const typename M::Unit* b, std::int64_t b_step, const Finish& finish_there,
                                          const Beside& beside_there = {}) {
  const Finish finish = finish_there;  // in registers: stores may not change them
  const Beside beside = beside_there;
  using Unit = typename M::Unit;
  Vector<typename M::Acc> sum[kRows][kVectors] = {};
  a += span.begin * kStep;
  b += span.begin * b_step;
  std::int64_t left = span.end - span.begin;
  const auto step = [&]() __attribute__((always_inline)) {
    Vector<Unit> right[kVectors];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) right[j] = load(b + j * kLanes<Unit>);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Vector<Unit> broadcasted = broadcast(a[i * row_step]);
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) sum[i][j] = M::dot(sum[i][j], broadcasted, right[j]);
    }
    a += kStep, b += b_step;
  };
  if constexpr (std::is_same_v<Beside, Prefetch>) {
    const char* row = beside.row;
    for (std::int64_t i = beside.rows; i > 0; --i, row += beside.stride) {
      for (std::int64_t at = 0; at < beside.row_bytes; at += kLineBytes) {
        __builtin_prefetch(row + at, 0, 2);
        for (std::int64_t n = beside.steps; n > 0; --n) step();
        left -= beside.steps;
      }
    }
    for (; left > 0; --left) step();
  } else if constexpr (Beside::kSteps > 0) {
    int done = 0;
    for (; done < Beside::kSteps && left > 0; ++done, --left) {
      step();
      beside(done);
    }
    for (; left > 0; --left) step();
    for (; done < Beside::kSteps; ++done) beside(done);
  } else {
    for (; left > 0; --left) step();
  }
  finish(sum);
}

// Takes the sums: put(row, vector, sum) for each.
template <class Put>
struct Each {
  Put put;
  template <class V, int kRows, int kVectors>
  LOOM_INLINE void operator()(V (&sum)[kRows][kVectors]) const {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) put(i, j, sum[i][j]);
    }
  }
};
template <class Put>
Each(Put) -> Each<Put>;

// Rows of `out`, `step` apart: the sums replace them, or are added to them times a factor a row.
template <class Acc>
auto replace(Acc* out, std::int64_t step) {
  return Each{[=](int i, int j, Vector<Acc> sum) { store(out + i * step + j * kLanes<Acc>, sum); }};
}
template <class Acc>
auto add_to(Acc* out, std::int64_t step) {
  return Each{[=](int i, int j, Vector<Acc> sum) {
    Acc* at = out + i * step + j * kLanes<Acc>;
    store(at, load(at) + sum);
  }};
}
template <class Acc>
auto add_to_scaled(Acc* out, std::int64_t step, const Acc* factors) {
  return Each{[=](int i, int j, Vector<Acc> sum) {
    Acc* at = out + i * step + j * kLanes<Acc>;
    store(at, load(at) * factors[i] + sum);
  }};
}

// A vector rounded to T.
template <class T, class V>
LOOM_INLINE void store_rounded(T* to, V v) {
  if constexpr (sizeof(T) * kLanes<T> == sizeof(V) && sizeof(v[0]) == sizeof(T)) {
    store(to, v);
  } else if constexpr (sizeof(V) == sizeof(simd::F32x16)) {
    simd::store(to, (simd::F32x16)v);
  } else {
    for (std::size_t i = 0; i < sizeof(V) / sizeof(v[0]); ++i) to[i] = T(v[i]);
  }
}

// Calls body(integral constant of n) for a run-time n of 1 ... kMost.
template <int kMost, class Body>
LOOM_INLINE void with_constant(int n, Body&& body) {
  if constexpr (kMost > 1) {
    if (n < kMost) return with_constant<kMost - 1>(n, body);
  }
  body(std::integral_constant<int, kMost>{});
}

// The next number of vectors to take of `left`: no run ends in a lone vector that a better split avoids.
constexpr int next_vectors(std::int64_t left) {
  if (left <= kMostVectors) return static_cast<int>(left);
  return kMostVectors == 4 && (left == 5 || left == 6 || left == 9) ? 3 : kMostVectors;
}

// Steps of multiply_wide() over k in kTile rows and columns.
template <class M>
constexpr std::int64_t wide_steps(std::int64_t columns, std::int64_t k) {
  return kTile / rows_beside(kMostVectors) * ceil_div<std::int64_t>(columns, kMostVectors * kLanes<typename M::Acc>) *
         k;
}

// C[kTile][columns] from A of kRowStep, kStep and B in `rows` layout; finish(row, column) takes the sums
// from there on. span(first, count) is the range of k that rows first ... first + count - 1 need; rows from `rows` on
// are left out. Rows of `ahead` are prefetched on the way.
template <class M, int kRowStep, int kStep, class SpanOf, class FinishOf>
LOOM_INLINE void multiply_wide(std::int64_t rows, std::int64_t columns, const typename M::Unit* a,
                               const typename M::Unit* b, std::int64_t b_step, Ahead& ahead, SpanOf&& span,
                               FinishOf&& finish) {
  constexpr int kWidth = kLanes<typename M::Acc>;
  std::int64_t column = 0;
  while (column < columns) {
    const int vectors = next_vectors((columns - column) / kWidth);
    with_constant<kMostVectors>(vectors, [&](auto constant) {
      constexpr int kVectors = decltype(constant)::value;
      constexpr int kRows = rows_beside(kVectors);
      for (std::int64_t row = 0; row < rows; row += kRows) {
        const Span steps = span(row, kRows);
        multiply_registers<M, kRows, kVectors, kStep>(steps, a + row * kRowStep,
                                                      std::integral_constant<std::int64_t, kRowStep>{}, b + column,
                                                      b_step, finish(row, column), ahead.take(steps.end - steps.begin));
      }
    });
    column += vectors * kWidth;
  }
}

// Rows of scores made together.
inline constexpr int kScoreRows = kRegisters == 32 ? 8 : 6;

// kScoreRows rows of scores: `vectors` vectors of A . B, A in lines of `a_step`, B in `columns` layout, over `units` of
// the head dim. finish(first) takes the sums from vector `first` on.
template <class M, class FinishOf>
LOOM_INLINE void multiply_scores(std::int64_t units, int vectors, const typename M::Unit* a, std::int64_t a_step,
                                 const typename M::Unit* b, FinishOf&& finish) {
  constexpr int kMost = kRegisters == 32 ? 3 : 2;
  for (int first = 0; first < vectors; first += kMost) {
    with_constant<kMost>(std::min(kMost, vectors - first), [&](auto constant) {
      multiply_registers<M, kScoreRows, decltype(constant)::value, 1>(
          {0, units}, a, a_step, b + first * kLanes<typename M::Unit>, kTile, finish(first));
    });
  }
}

// Which scores of a tile, or of tiles side by side, count: row r sees columns below limit(r), which is 0 where the tile
// lies behind the row.
struct Mask {
  std::int64_t diagonal;  // limit(r) = r + diagonal, within [0, keys]
  std::int64_t keys;      // keys of the tile inside the sequence

  static Mask of(const Attention& op, std::int64_t first_row, std::int64_t first_key, std::int64_t columns = kTile) {
    const std::int64_t keys = std::min<std::int64_t>(columns, op.keys - first_key);
    return {op.causal ? op.start + first_row - first_key + 1 : columns, keys};
  }
  std::int64_t limit(std::int64_t row) const { return std::clamp<std::int64_t>(row + diagonal, 0, keys); }
  // Columns that some row of [0, row] sees, as whole vectors of T.
  template <class T>
  int vectors(std::int64_t row) const {
    return static_cast<int>((limit(row) + kLanes<T> - 1) / kLanes<T>);
  }
};

// Lanes first ... first + lanes - 1 of v, with those from `limit` on replaced.
template <class T>
LOOM_INLINE Vector<T> masked(Vector<T> v, std::int64_t first, std::int64_t limit, T other) {
  for (int i = 0; i < kLanes<T>; ++i) {
    if (first + i >= limit) v[i] = other;
  }
  return v;
}
#if defined(__AVX512F__)
template <>
LOOM_INLINE Vector<float> masked(Vector<float> v, std::int64_t first, std::int64_t limit, float other) {
  const std::int64_t kept = std::clamp<std::int64_t>(limit - first, 0, 16);
  const auto mask = static_cast<__mmask16>((1u << kept) - 1u);
  return (Vector<float>)_mm512_mask_mov_ps(_mm512_set1_ps(other), mask, (__m512)v);
}
#endif

// ---- Packing ----------------------------------------------------------------------------------------------------

// `count` elements of memory as accumulators' type, or as they are.
template <class E>
LOOM_INLINE void copy_row(const E* from, std::int64_t count, E* to) {
  constexpr std::int64_t kStep = kVectorBytes / static_cast<std::int64_t>(sizeof(E));
  std::int64_t i = 0;
  for (; i + kStep <= count; i += kStep) std::memcpy(static_cast<void*>(to + i), from + i, kVectorBytes);
  for (; i < count; ++i) to[i] = from[i];
}
LOOM_INLINE void copy_row(const bf16* from, std::int64_t count, float* to) { widen(from, count, to); }
LOOM_INLINE void copy_row(const f16* from, std::int64_t count, float* to) { widen(from, count, to); }

// A 16 x 16 block of 32-bit units, transposed.
#if defined(__AVX512F__)
LOOM_INLINE void transpose_block(const std::uint32_t* from, std::int64_t from_step, std::uint32_t* to,
                                 std::int64_t to_step) {
  __m512i r[16], t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(from + i * from_step);
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) _mm512_storeu_si512(to + i * to_step, r[i]);
}
#endif

#if defined(__AVX512F__)
inline constexpr std::int64_t kBlockUnits = 16;
#endif

// [kTile][step] -> [units][kTile].
template <class Unit>
void transpose(const Unit* from, std::int64_t step, std::int64_t units, Unit* to) {
  std::int64_t done = 0;
#if defined(__AVX512F__)
  if constexpr (sizeof(Unit) == 4) {
    for (; done + 16 <= units; done += 16) {
      for (int row = 0; row < kTile; row += 16) {
        transpose_block(reinterpret_cast<const std::uint32_t*>(from + row * step + done), step,
                        reinterpret_cast<std::uint32_t*>(to + done * kTile + row), kTile);
      }
    }
  }
#endif
  for (; done < units; ++done) {
    for (int row = 0; row < kTile; ++row) to[done * kTile + row] = from[row * step + done];
  }
}

// Packs tiles of tensors of T (rows `stride` elements apart) for arithmetic M.
template <class M, class T>
class Packer {
 public:
  using Unit = typename M::Unit;
  static constexpr int kPack = M::kPack;
  using Element = std::conditional_t<kPack == 2, bf16, typename M::Acc>;

  explicit Packer(std::int64_t head_dim) : dim_(head_dim), padded_(padded<typename M::Acc>(head_dim)) {}

  std::int64_t dim() const { return dim_; }
  std::int64_t padded_dim() const { return padded_; }
  std::int64_t column_units() const { return (dim_ + kPack - 1) / kPack; }
  std::int64_t line_units() const { return padded_ / kPack; }
  // Units of a tile in each layout.
  std::int64_t rows_units() const { return kTile / kPack * padded_; }
  std::int64_t columns_units() const { return (column_units() * kTile + 15) / 16 * 16; }
  std::int64_t lines_units() const { return kTile * padded_ / kPack; }

  // The tile of `count` rows from `from`, the rest zeros.
  void pack_lines(const T* from, std::int64_t stride, std::int64_t count, Unit* lines) const {
    auto* to = reinterpret_cast<Element*>(lines);
    for (std::int64_t row = 0; row < kTile; ++row, to += padded_) {
      const std::int64_t filled = row < count ? dim_ : 0;
      if (row + kPrefetchRows < count) prefetch(from + (row + kPrefetchRows) * stride);
      if (filled > 0) copy_row(from + row * stride, dim_, to);
      for (std::int64_t i = filled; i < padded_; ++i) to[i] = Element{};
    }
  }
  // A packed tile in another layout.
  void pack_rows(const Unit* lines, Unit* rows) const {
    if constexpr (kPack == 2) {
      const auto* element = reinterpret_cast<const std::uint16_t*>(lines);
      for (int pair = 0; pair < kTile / 2; ++pair, element += 2 * padded_, rows += padded_) {
        for (std::int64_t i = 0; i < padded_; ++i) {
          rows[i] = element[i] | static_cast<std::uint32_t>(element[padded_ + i]) << 16;
        }
      }
    } else if (rows != lines) {
      std::memcpy(rows, lines, static_cast<std::size_t>(kTile * padded_) * sizeof(Unit));
    }
  }
  // `lines` is room to work in.
  void pack_columns(const T* from, std::int64_t stride, std::int64_t count, Unit* lines, Unit* columns) const {
    if (count == kTile && transposes_memory(stride)) return transpose_memory(from, stride, columns);
    pack_lines(from, stride, count, lines);
    transpose(lines, line_units(), column_units(), columns);
  }

 private:
  // Whether memory holds rows of whole blocks of units already.
  bool transposes_memory([[maybe_unused]] std::int64_t stride) const {
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<T, Element> && sizeof(Unit) == 4) {
      return stride % kPack == 0 && dim_ % (kBlockUnits * kPack) == 0;
    }
#endif
    return false;
  }
  void transpose_memory([[maybe_unused]] const T* from, [[maybe_unused]] std::int64_t stride,
                        [[maybe_unused]] Unit* to) const {
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<T, Element> && sizeof(Unit) == 4) {
      for (int row = 0; row < kTile; row += 16) {
        for (int i = 16; i < 32 && row + i < kTile; ++i) prefetch(from + (row + i) * stride);
        for (std::int64_t unit = 0; unit < column_units(); unit += kBlockUnits) {
          transpose_block(reinterpret_cast<const std::uint32_t*>(from + row * stride + unit * kPack), stride / kPack,
                          reinterpret_cast<std::uint32_t*>(to + unit * kTile + row), kTile);
        }
      }
    }
#endif
  }

  // Rows lie a stride apart, too far for the processor to guess.
  void prefetch(const T* row) const {
    const auto* bytes = reinterpret_cast<const char*>(row);
    for (std::int64_t i = 0; i < dim_ * static_cast<std::int64_t>(sizeof(T)); i += 64) __builtin_prefetch(bytes + i);
  }
  static constexpr std::int64_t kPrefetchRows = 12;

  std::int64_t dim_;
  std::int64_t padded_;
};

// A finished row: factor * from, rounded to T.
template <class Acc, class T>
LOOM_INLINE void finish_row(const Acc* from, Acc factor, std::int64_t count, T* to) {
  std::int64_t i = 0;
  if constexpr (sizeof(Acc) == 4) {
    for (; i + 16 <= count; i += 16) simd::store(to + i, simd::load<simd::F32x16>(from + i) * factor);
  }
  for (; i < count; ++i) to[i] = T(from[i] * factor);
}

}  // namespace loom::kernels::attn
