// Register tiles of 32 x 32 from matrix registers of 16 rows of 64 bytes, as AMX has them. Private to engine/kernels.
//
// Registers   class of an unnamed namespace with static functions; a register's number is a template argument:
//               begin(): before the first use in a thread or later, zero<C>(), load<R>(from, bytes between rows),
//               dot<C, A, B>(): C[16,16] += A[16, 16 pairs] . B[16 pairs, 16], store<C>(to, bytes between rows),
//               write<kWidth>(t, sums): the sums of a tile, kWidth a row, to C, as t says
//             Real ones are in gemm_amx.cpp; the tests bring some of plain C++, so that this code runs anywhere.
// Layout      A: words along K in a row (packs_along_k). B: panels of 32 or 16 columns.
// Edges       rows, and steps that do not fill a register, go through copies filled up with zeros: nothing is read or
//             written outside the operands.
#pragma once

#include <cstring>

#include "engine/kernels/gemm_kernels.h"

namespace loom::kernels {

inline constexpr std::int64_t kAmxRows = 32;
inline constexpr std::int64_t kAmxSide = 16;  // rows of a register; also words of a row

template <class Registers, int kWidth>
struct AmxTile {
  static constexpr bool kIsWide = kWidth == 2 * kAmxSide;

  // Sums of `steps` steps, a whole number of registers, of 16 or 32 rows.
  static void add(const char* a, std::int64_t a_row, const float* b, std::int64_t steps, bool has_two) {
    constexpr std::int64_t kBRow = kWidth * sizeof(float);
    for (std::int64_t k = 0; k < steps; k += kAmxSide, a += kAmxSide * sizeof(float), b += kAmxSide * kWidth) {
      Registers::template load<4>(a, a_row);
      Registers::template load<6>(b, kBRow);
      Registers::template dot<0, 4, 6>();
      if constexpr (kIsWide) {
        Registers::template load<7>(b + kAmxSide, kBRow);
        Registers::template dot<1, 4, 7>();
      }
      if (!has_two) continue;
      Registers::template load<5>(a + kAmxSide * a_row, a_row);
      Registers::template dot<2, 5, 6>();
      if constexpr (kIsWide) Registers::template dot<3, 5, 7>();
    }
  }

  static void store(float* sums, bool has_two) {
    constexpr std::int64_t kRow = kWidth * sizeof(float);
    Registers::template store<0>(sums, kRow);
    if constexpr (kIsWide) Registers::template store<1>(sums + kAmxSide, kRow);
    if (!has_two) return;
    Registers::template store<2>(sums + kAmxSide * kWidth, kRow);
    if constexpr (kIsWide) Registers::template store<3>(sums + kAmxSide * kWidth + kAmxSide, kRow);
  }

  // Rows [rows, 32) and steps up to a whole register are zero.
  static void copy_rows(const GemmTile& t, std::int64_t begin, std::int64_t steps, float* out, std::int64_t out_row) {
    for (std::int64_t r = 0; r < kAmxRows; ++r) {
      float* to = out + r * out_row;
      std::memset(to, 0, static_cast<std::size_t>(out_row) * sizeof(float));
      if (r < t.rows)
        std::memcpy(to, t.a + r * t.a_row + begin * t.a_step, static_cast<std::size_t>(steps) * sizeof(float));
    }
  }

  static void multiply(const GemmTile& t) {
    Registers::begin();
    Registers::template zero<0>();
    Registers::template zero<1>();
    Registers::template zero<2>();
    Registers::template zero<3>();
    const bool has_two = t.rows > kAmxSide;
    const std::int64_t whole = t.steps / kAmxSide * kAmxSide, rest = t.steps - whole;
    if (t.rows % kAmxSide == 0) {
      add(t.a, t.a_row, t.b, whole, has_two);
    } else if (whole > 0) {
      alignas(64) float rows[kAmxRows * kMostSteps];
      copy_rows(t, 0, whole, rows, whole);
      add(reinterpret_cast<const char*>(rows), whole * static_cast<std::int64_t>(sizeof(float)), t.b, whole, has_two);
    }
    if (rest > 0) {
      alignas(64) float rows[kAmxRows * kAmxSide], columns[kAmxSide * kWidth] = {};
      copy_rows(t, whole, rest, rows, kAmxSide);
      std::memcpy(columns, t.b + whole * kWidth, static_cast<std::size_t>(rest) * kWidth * sizeof(float));
      add(reinterpret_cast<const char*>(rows), kAmxSide * sizeof(float), columns, kAmxSide, has_two);
    }
    alignas(64) float sums[kAmxRows * kWidth];
    store(sums, has_two);
    Registers::template write<kWidth>(t, sums);
  }
};

}  // namespace loom::kernels
