// Packing of the operands of matrix products, for any instruction set. Private to engine/kernels.
//
// Isa   as in gemm_micro.h, and
//         along<Words>(p, n): n words of consecutive k, across<Words>(p, q, n): one step of n columns; p and q are the
//         rows of the stored matrix at the step (q at its second k, of pairs), transpose(F rows[kLanes]),
//         store_halves(p, q, x, y): the lower halves behind each other at p, the upper ones at q, for sets whose
//         vector fills two panels of A
#pragma once

#include "engine/kernels/gemm_micro.h"

namespace loom::kernels {

static LOOM_ALWAYS_INLINE constexpr std::int64_t bytes_along(Words words) {
  return words == Words::kFp32 || words == Words::kBf16Pairs ? 4 : 2;
}
static LOOM_ALWAYS_INLINE constexpr std::int64_t bytes_of_element(Words words) { return words == Words::kFp32 ? 4 : 2; }

static LOOM_ALWAYS_INLINE constexpr std::int64_t at_most(std::int64_t value, std::int64_t most) {
  return value < most ? value : most;
}

constexpr std::int64_t kStepsAtOnce = 8;  // rows that are read side by side

// Rows of [rows, K] become columns: `out` has `width` words a step, of which kLanes are written.
template <class Isa, Words kWords>
LOOM_ALWAYS_INLINE void transpose_rows(const char* from, std::int64_t stride, std::int64_t rows, std::int64_t steps,
                                       float* out, std::int64_t width) {
  using F = typename Isa::F;
  constexpr std::int64_t kLanes = Isa::kLanes;
  for (std::int64_t k = 0; k < steps; k += kLanes) {
    const std::int64_t some = at_most(steps - k, kLanes);
    F block[kLanes];
    if (rows == kLanes && some == kLanes) {
#pragma GCC unroll 16
      for (std::int64_t r = 0; r < kLanes; ++r)
        block[r] = Isa::template along<kWords>(from + r * stride + k * bytes_along(kWords), kLanes);
    } else {
      for (std::int64_t r = 0; r < kLanes; ++r)
        block[r] =
            r < rows ? Isa::template along<kWords>(from + r * stride + k * bytes_along(kWords), some) : Isa::zero();
    }
    Isa::transpose(block);
    if (some == kLanes) {
#pragma GCC unroll 16
      for (std::int64_t s = 0; s < kLanes; ++s) Isa::store(out + (k + s) * width, block[s]);
    } else {
      for (std::int64_t s = 0; s < some; ++s) Isa::store(out + (k + s) * width, block[s]);
    }
  }
}

// Rows of [K, columns] as they are: `panels` whole panels, row after row.
template <class Isa, Words kWords, int kVectors>
LOOM_ALWAYS_INLINE void copy_whole_panels(const PackB& op) {
  constexpr std::int64_t kRows = kWords == Words::kBf16Pairs ? 2 : 1;
  constexpr std::int64_t kBytes = Isa::kLanes * bytes_of_element(kWords);
  constexpr std::int64_t kWidth = kVectors * Isa::kLanes;
  const char* row = op.b;
  for (std::int64_t k = 0; k < op.steps; ++k, row += kRows * op.stride) {
    const char* from = row;
    float* out = op.out + k * kWidth;
    for (std::int64_t panel = 0; panel < op.panels; ++panel, from += kVectors * kBytes, out += kWidth * op.steps) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        Isa::store(out + v * Isa::kLanes,
                   Isa::template across<kWords>(from + v * kBytes, from + op.stride + v * kBytes, Isa::kLanes));
      }
    }
  }
}

template <class Isa, Words kWords>
LOOM_ALWAYS_INLINE void copy_rows(const PackB& op) {
  if (op.columns == op.width && op.width == 3 * Isa::kLanes) return copy_whole_panels<Isa, kWords, 3>(op);
  if (op.columns == op.width && op.width == 2 * Isa::kLanes) return copy_whole_panels<Isa, kWords, 2>(op);
  constexpr std::int64_t kRows = kWords == Words::kBf16Pairs ? 2 : 1;
  const char* from = op.b;
  float* out = op.out;
  for (std::int64_t k = 0; k < op.steps; ++k, from += kRows * op.stride, out += op.width) {
    for (std::int64_t v = 0; v < op.width; v += Isa::kLanes) {
      const std::int64_t some = at_most(op.columns - v, Isa::kLanes);
      const char* here = from + v * bytes_of_element(kWords);
      Isa::store(out + v, some > 0 ? Isa::template across<kWords>(here, here + op.stride, some) : Isa::zero());
    }
  }
}

template <class Isa, Words kWords>
void pack_b_as(const PackB& op) {
  if (!op.transposed) return copy_rows<Isa, kWords>(op);
  for (std::int64_t panel = 0; panel < op.panels; ++panel) {
    const char* from = op.b + panel * op.width * op.stride;
    float* out = op.out + panel * op.width * op.steps;
    for (std::int64_t v = 0; v < op.width; v += Isa::kLanes) {
      const std::int64_t some = op.columns - v;
      transpose_rows<Isa, kWords>(from + v * op.stride, op.stride, some < 0 ? 0 : at_most(some, Isa::kLanes), op.steps,
                                  out + v, op.width);
    }
  }
}

// `steps` steps of one panel.
template <class Isa, Words kWords, int kTileRows>
LOOM_ALWAYS_INLINE void copy_columns(const char* from, std::int64_t stride, std::int64_t columns, std::int64_t steps,
                                     float* out) {
  constexpr std::int64_t kRows = kWords == Words::kBf16Pairs ? 2 : 1;
  for (std::int64_t k = 0; k < steps; ++k, from += kRows * stride, out += kTileRows)
    Isa::store_part(out, Isa::template across<kWords>(from, from + stride, columns), kTileRows);
}

// `steps` steps, an even number, of two panels that a vector fills.
template <class Isa, Words kWords, int kTileRows>
LOOM_ALWAYS_INLINE void copy_two_panels(const char* from, std::int64_t stride, std::int64_t columns, std::int64_t steps,
                                        float* out, float* second) {
  constexpr std::int64_t kRows = kWords == Words::kBf16Pairs ? 2 : 1;
  for (std::int64_t k = 0; k < steps; k += 2, out += 2 * kTileRows, second += 2 * kTileRows) {
    const typename Isa::F words = Isa::template across<kWords>(from, from + stride, columns);
    from += kRows * stride;
    const typename Isa::F next = Isa::template across<kWords>(from, from + stride, columns);
    from += kRows * stride;
    Isa::store_halves(out, second, words, next);
  }
}

// Columns of [K, rows] are rows of A. A few steps of all columns at a time: so memory is read along its rows.
template <class Isa, Words kWords, int kTileRows>
LOOM_ALWAYS_INLINE void copy_all_columns(const PackA& op) {
  constexpr std::int64_t kRows = kWords == Words::kBf16Pairs ? 2 : 1;
  constexpr bool kTwo = Isa::kLanes == 2 * kTileRows;
  constexpr std::int64_t kWidth = kTwo ? 2 * kTileRows : kTileRows;
  for (std::int64_t k = 0; k < op.steps; k += kStepsAtOnce) {
    const std::int64_t steps = at_most(op.steps - k, kStepsAtOnce);
    for (std::int64_t row = 0; row < op.rows; row += kWidth) {
      const char* from = op.a + k * kRows * op.stride + row * bytes_of_element(kWords);
      float* out = op.out + row * op.steps + k * kTileRows;
      float* second = out + kTileRows * op.steps;
      const std::int64_t columns = at_most(op.rows - row, kWidth);
      if constexpr (kTwo) {
        if (columns == kWidth && steps == kStepsAtOnce) {
          copy_two_panels<Isa, kWords, kTileRows>(from, op.stride, kWidth, kStepsAtOnce, out, second);
          continue;
        }
      }
      copy_columns<Isa, kWords, kTileRows>(from, op.stride, at_most(columns, kTileRows), steps, out);
      if (columns > kTileRows) {
        copy_columns<Isa, kWords, kTileRows>(from + kTileRows * bytes_of_element(kWords), op.stride,
                                             columns - kTileRows, steps, second);
      }
    }
  }
}

// Rows of [rows, K] become rows of `steps` words.
template <class Isa, Words kWords>
LOOM_ALWAYS_INLINE void copy_along_k(const PackA& op) {
  for (std::int64_t row = 0; row < op.rows; ++row) {
    const char* from = op.a + row * op.stride;
    float* out = op.out + row * op.steps;
    for (std::int64_t k = 0; k < op.steps; k += Isa::kLanes) {
      const std::int64_t some = at_most(op.steps - k, Isa::kLanes);
      Isa::store_part(out + k, Isa::template along<kWords>(from + k * bytes_along(kWords), some), some);
    }
  }
}

// Columns of [K, rows] become rows of `steps` words: for sets that read A along K.
template <class Isa, Words kWords>
LOOM_ALWAYS_INLINE void transpose_all_columns(const PackA& op, std::int64_t whole_rows) {
  constexpr std::int64_t kRows = kWords == Words::kBf16Pairs ? 2 : 1;
  for (std::int64_t k = 0; k < op.steps; k += Isa::kLanes) {
    const std::int64_t steps = at_most(op.steps - k, Isa::kLanes);
    for (std::int64_t row = 0; row < whole_rows; row += Isa::kLanes) {
      const std::int64_t rows = op.rows - row < 0 ? 0 : at_most(op.rows - row, Isa::kLanes);
      typename Isa::F block[Isa::kLanes];
      for (std::int64_t s = 0; s < Isa::kLanes; ++s) {
        const char* from = op.a + (k + s) * kRows * op.stride + row * bytes_of_element(kWords);
        block[s] = s < steps && rows > 0 ? Isa::template across<kWords>(from, from + op.stride, rows) : Isa::zero();
      }
      Isa::transpose(block);
      for (std::int64_t r = 0; r < Isa::kLanes; ++r)
        Isa::store_part(op.out + (row + r) * op.steps + k, block[r], steps);
    }
  }
}

// Calls body<words>().
template <class Body>
static LOOM_ALWAYS_INLINE void visit_words(Words words, Body body) {
  switch (words) {
    case Words::kFp32:
      return body.template operator()<Words::kFp32>();
    case Words::kBf16Pairs:
      return body.template operator()<Words::kBf16Pairs>();
    case Words::kBf16Widened:
      return body.template operator()<Words::kBf16Widened>();
    case Words::kFp16Widened:
      return body.template operator()<Words::kFp16Widened>();
  }
}

template <class Isa>
void pack_b(const PackB& op) {
  visit_words(op.words, [&]<Words kWords>() { pack_b_as<Isa, kWords>(op); });
}

template <class Isa, int kTileRows>
void pack_a(const PackA& op) {
  visit_words(op.words, [&]<Words kWords>() {
    op.transposed ? copy_all_columns<Isa, kWords, kTileRows>(op) : copy_along_k<Isa, kWords>(op);
  });
}

// Transposed A only: A with K contiguous is read in place. kTileRows is a multiple of kLanes.
template <class Isa, int kTileRows>
void pack_a_along_k(const PackA& op) {
  visit_words(op.words, [&]<Words kWords>() {
    transpose_all_columns<Isa, kWords>(op, (op.rows + kTileRows - 1) / kTileRows * kTileRows);
  });
}

}  // namespace loom::kernels
