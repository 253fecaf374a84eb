// Register tiles of matrix products, for any instruction set. Private to engine/kernels.
//
// Isa   a class of an unnamed namespace, so that each file that includes this has its own copy, compiled for its own
//       instruction set:
//         F, kLanes, zero(), load(p), load_part(p, n), store(p, x), store_part(p, x, n), broadcast(p): a word for all
//         lanes, fma(a, b, sum): words, add(x, y), load16_part(p, n, type), store16_part(p, x, n, type),
//         round16(x, type): as if stored and loaded
//       Rows of a tile: at most 8 (three pointers reach them).
#pragma once

#include <cstdint>

#include "engine/kernels/gemm_kernels.h"

#define LOOM_ALWAYS_INLINE __attribute__((always_inline)) inline

namespace loom::kernels {

template <class Isa, int kRows, int kVectors>
struct RegisterTile {
  using F = typename Isa::F;
  static constexpr int kWidth = kVectors * Isa::kLanes;

  F sum[kRows][kVectors];

  LOOM_ALWAYS_INLINE void clear() {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Isa::zero();
    }
  }

  template <class Body>
  LOOM_ALWAYS_INLINE void each(Body body) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = body(r, v, sum[r][v]);
    }
  }

  static constexpr int kLines = (kWidth * 4 + 63) / 64;  // of a row of C in fp32

  template <int kFirst, int kEnd>
  static LOOM_ALWAYS_INLINE void prefetch_c_lines(const char* row, std::int64_t c_bytes) {
#pragma GCC unroll 4
    for (int line = kFirst; line < kEnd; ++line) __builtin_prefetch(row + line * 16 * c_bytes, 1, 3);
  }

  // Rows 0, 3 and 6 have a pointer each; the others are one or two row strides from one of these.
  LOOM_ALWAYS_INLINE void step(const char* a0, const char* a3, const char* a6, std::int64_t row, const float* b) {
    F column[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) column[v] = Isa::load(b + v * Isa::kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const char* base = r < 3 ? a0 : r < 6 ? a3 : a6;
      const F word = Isa::broadcast(base + r % 3 * row);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Isa::fma(word, column[v], sum[r][v]);
    }
  }

  LOOM_ALWAYS_INLINE void multiply(const GemmTile& t) {
    const std::int64_t row = t.a_row, step_bytes = t.a_step;
    const char *a0 = t.a, *a3 = t.a + 3 * row, *a6 = t.a + 6 * row;
    const float* b = t.b;
    const auto one = [&]() __attribute__((always_inline)) {
      step(a0, a3, a6, row, b);
      a0 += step_bytes, a3 += step_bytes, a6 += step_bytes, b += kWidth;
    };
    const char *next = t.next_a, *next_too = t.next_a + t.next_row;
    std::int64_t k = t.steps;
    const auto four = [&]() __attribute__((always_inline)) {
      __builtin_prefetch(next);
      one();
      one();
      __builtin_prefetch(next_too);
      one();
      one();
      next += t.next_step, next_too += t.next_step;
      k -= 4;
    };
    // A row of C every eight steps: all rows at once would hold the buffers that lines of B come through.
    const std::int64_t c_bytes = t.type == OutputType::kFp32 ? 4 : 2;
    const char* c = static_cast<const char*>(t.c);
    for (int r = 0; r < kRows && k >= 8; ++r, c += t.c_row * c_bytes) {
      prefetch_c_lines<0, kLines / 2>(c, c_bytes);
      four();
      prefetch_c_lines<kLines / 2, kLines>(c, c_bytes);
      four();
    }
    while (k >= 4) four();
    for (; k > 0; --k) one();
  }
};

// Columns of vector v of a tile of `columns`.
template <class Isa>
LOOM_ALWAYS_INLINE std::int64_t lanes_of(const GemmTile& t, int v) {
  const std::int64_t left = t.columns - v * Isa::kLanes;
  return left < 0 ? 0 : left < Isa::kLanes ? left : Isa::kLanes;
}

template <class Isa, int kRows, int kVectors>
LOOM_ALWAYS_INLINE void add_fp32(RegisterTile<Isa, kRows, kVectors>& tile, const GemmTile& t, const float* from,
                                 std::int64_t row, bool is_whole) {
  using F = typename Isa::F;
  if (is_whole) {
    tile.each([&](int r, int v, F x) { return Isa::add(Isa::load(from + r * row + v * Isa::kLanes), x); });
  } else {
    tile.each([&](int r, int v, F x) {
      return Isa::add(Isa::load_part(from + r * row + v * Isa::kLanes, lanes_of<Isa>(t, v)), x);
    });
  }
}

template <class Isa, int kRows, int kVectors>
LOOM_ALWAYS_INLINE void write_fp32(RegisterTile<Isa, kRows, kVectors>& tile, const GemmTile& t, bool is_whole) {
  using F = typename Isa::F;
  float* c = static_cast<float*>(t.c);
  if (t.adds_c) [[unlikely]]
    add_fp32(tile, t, c, t.c_row, is_whole);
  if (is_whole) {
    tile.each([&](int r, int v, F x) { return Isa::store(c + r * t.c_row + v * Isa::kLanes, x), x; });
  } else {
    tile.each([&](int r, int v, F x) {
      return Isa::store_part(c + r * t.c_row + v * Isa::kLanes, x, lanes_of<Isa>(t, v)), x;
    });
  }
}

template <class Isa, int kRows, int kVectors>
LOOM_ALWAYS_INLINE void write_16_bits(RegisterTile<Isa, kRows, kVectors>& tile, const GemmTile& t) {
  using F = typename Isa::F;
  std::uint16_t* c = static_cast<std::uint16_t*>(t.c);
  if (t.rounds_first) tile.each([&](int, int, F x) { return Isa::round16(x, t.type); });
  if (t.adds_c) {
    tile.each([&](int r, int v, F x) {
      return Isa::add(Isa::load16_part(c + r * t.c_row + v * Isa::kLanes, lanes_of<Isa>(t, v), t.type), x);
    });
  }
  tile.each([&](int r, int v, F x) {
    return Isa::store16_part(c + r * t.c_row + v * Isa::kLanes, x, lanes_of<Isa>(t, v), t.type), x;
  });
}

template <class Isa, int kRows, int kVectors>
void multiply_tile(const GemmTile& t) {
  using F = typename Isa::F;
  RegisterTile<Isa, kRows, kVectors> tile;
  tile.clear();
  tile.multiply(t);
  const bool is_whole = t.columns == tile.kWidth;
  if (t.sums != nullptr) add_fp32(tile, t, t.sums, t.sums_row, is_whole);
  if (t.bias != nullptr) {
    tile.each(
        [&](int, int v, F x) { return Isa::add(x, Isa::load_part(t.bias + v * Isa::kLanes, lanes_of<Isa>(t, v))); });
  }
  if (t.type == OutputType::kFp32) {
    write_fp32(tile, t, is_whole);
  } else {
    write_16_bits(tile, t);
  }
}

// multiply_tile of 1 to kRows rows.
template <class Isa, int kRows, int kVectors>
struct TilesOfWidth {
  TileSet::Multiply of_rows[kRows] = {};

  constexpr TilesOfWidth() { fill<kRows>(); }

 private:
  template <int kRow>
  constexpr void fill() {
    of_rows[kRow - 1] = &multiply_tile<Isa, kRow, kVectors>;
    if constexpr (kRow > 1) fill<kRow - 1>();
  }
};

}  // namespace loom::kernels
