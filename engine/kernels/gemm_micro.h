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

  LOOM_ALWAYS_INLINE void add(const float* from, std::int64_t row) {
    each([&](int r, int v, F x) { return Isa::add(Isa::load(from + r * row + v * Isa::kLanes), x); });
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

// Writes the sums of a tile, kVectors a row, to C. Unlike multiply_tile it is compiled once for all heights.
template <class Isa, int kVectors>
[[gnu::noinline]] void write_words(const GemmTile& t, const float* words) {
  using F = typename Isa::F;
  const std::int64_t element = t.type == OutputType::kFp32 ? 4 : 2;
  char* c = static_cast<char*>(t.c);
  for (std::int64_t r = 0; r < t.rows; ++r, c += t.c_row * element) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v, words += Isa::kLanes) {
      const std::int64_t at = v * Isa::kLanes, left = t.columns - at;
      const std::int64_t some = left < 0 ? 0 : left < Isa::kLanes ? left : Isa::kLanes;
      F x = Isa::load(words);
      if (t.sums != nullptr) x = Isa::add(Isa::load_part(t.sums + r * t.sums_row + at, some), x);
      if (t.bias != nullptr) x = Isa::add(x, Isa::load_part(t.bias + at, some));
      if (t.type == OutputType::kFp32) {
        float* to = reinterpret_cast<float*>(c) + at;
        if (t.adds_c) x = Isa::add(Isa::load_part(to, some), x);
        some == Isa::kLanes ? Isa::store(to, x) : Isa::store_part(to, x, some);
      } else {
        char* to = c + at * element;
        if (t.rounds_first) x = Isa::round16(x, t.type);
        if (t.adds_c) x = Isa::add(Isa::load16_part(to, some, t.type), x);
        Isa::store16_part(to, x, some, t.type);
      }
    }
  }
}

template <class Isa, int kRows, int kVectors>
void multiply_tile(const GemmTile& t) {
  using F = typename Isa::F;
  RegisterTile<Isa, kRows, kVectors> tile;
  tile.clear();
  tile.multiply(t);
  if (t.type != OutputType::kFp32 || t.columns != tile.kWidth) {
    float words[kRows * tile.kWidth];
    tile.each([&](int r, int v, F x) { return Isa::store(words + r * tile.kWidth + v * Isa::kLanes, x), x; });
    return write_words<Isa, kVectors>(t, words);
  }
  float* c = static_cast<float*>(t.c);
  if (t.sums != nullptr) tile.add(t.sums, t.sums_row);
  if (t.bias != nullptr) tile.each([&](int, int v, F x) { return Isa::add(x, Isa::load(t.bias + v * Isa::kLanes)); });
  if (t.adds_c) [[unlikely]]
    tile.add(c, t.c_row);
  tile.each([&](int r, int v, F x) { return Isa::store(c + r * t.c_row + v * Isa::kLanes, x), x; });
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
