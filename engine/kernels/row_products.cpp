#include "engine/kernels/row_products.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/core/rounding.h"
#include "engine/kernels/scratch.h"
#include "engine/kernels/simd.h"

// A matrix [N,K] is read by four rows at a time, one stream each; a matrix [K,N] by bands of 128 columns. Rows of X
// are widened to fp32 once.

namespace loom::kernels {
namespace {

using simd::F32x16;
using simd::Full;
using simd::Part;

constexpr std::int64_t kLanes = 16;
constexpr int kStreams = 4;                     // rows of [N,K] read together
constexpr int kRowsTogether = 4;                // rows of X
constexpr std::int64_t kTileBytes = 256 << 10;  // of [N,K], for one task
constexpr int kBandPacks = 8;                   // columns of [K,N] for one task, in packs
constexpr std::int64_t kRowsAhead = 8;          // of [K,N], prefetched

// The lanes' sum, by halves.
LOOM_INLINE float sum(F32x16 value) {
  const auto a = std::bit_cast<std::array<simd::F32x8, 2>>(value);
  const simd::F32x8 eight = a[0] + a[1];
  using F32x4 = float __attribute__((vector_size(16)));
  const auto b = std::bit_cast<std::array<F32x4, 2>>(eight);
  const F32x4 four = b[0] + b[1];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

template <class T>
class Products {
 public:
  Products(const RowProducts& op, const float* x, const T* w, T* y)
      : op_(op), x_(x), w_(w), bias_(static_cast<const T*>(op.bias)), y_(y) {}

  void run() const {
    if (op_.transposed) {
      const std::int64_t row_bytes = op_.k * static_cast<std::int64_t>(sizeof(T));
      const std::int64_t rows = std::max<std::int64_t>(kStreams, kTileBytes / row_bytes / kStreams * kStreams);
      parallel_for(ceil_div(op_.n, rows), [&](std::int64_t tile) {
        const std::int64_t end = std::min(op_.n, (tile + 1) * rows);
        for (std::int64_t row = tile * rows; row < end; row += kStreams) {
          if (end - row >= kStreams) {
            dot_rows<kStreams>(row);
          } else {
            for (std::int64_t last = row; last < end; ++last) dot_rows<1>(last);
          }
        }
      });
      return;
    }
    const std::int64_t band = kBandPacks * kLanes;
    parallel_for(ceil_div(op_.n, band), [&](std::int64_t tile) {
      const std::int64_t first = tile * band, count = std::min(band, op_.n - first);
      if (count == band) return add_band<kBandPacks>(first, Full{});
      std::int64_t at = first;
      for (; at + kLanes <= op_.n; at += kLanes) add_band<1>(at, Full{});
      if (at < op_.n) add_band<1>(at, Part{op_.n - at});
    });
  }

 private:
  // Outputs [row, row + kColumns) of every row of X.
  template <int kColumns>
  void dot_rows(std::int64_t row) const {
    std::int64_t m = 0;
    for (; m + kRowsTogether <= op_.m; m += kRowsTogether) dot<kRowsTogether, kColumns>(m, row);
    for (; m < op_.m; ++m) dot<1, kColumns>(m, row);
  }

  template <int kRows, int kColumns>
  void dot(std::int64_t m, std::int64_t row) const {
    F32x16 sums[kRows][kColumns] = {};
    const T* const w = w_ + row * op_.k;
    const float* const x = x_ + m * op_.k;
    const auto add = [&](std::int64_t at, auto part) {
      F32x16 weights[kColumns];
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) weights[c] = simd::load<F32x16>(w + c * op_.k + at, part);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const F32x16 value = simd::load<F32x16>(x + r * op_.k + at, part);
#pragma GCC unroll 4
        for (int c = 0; c < kColumns; ++c) sums[r][c] += value * weights[c];
      }
    };
    std::int64_t at = 0;
    for (; at + kLanes <= op_.k; at += kLanes) add(at, Full{});
    if (at < op_.k) add(at, Part{op_.k - at});
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kColumns; ++c) put((m + r) * op_.n, row + c, sum(sums[r][c]));
    }
  }

  void put(std::int64_t y_row, std::int64_t column, float value) const {
    if (bias_ != nullptr) value += static_cast<float>(bias_[column]);
    y_[y_row + column] = T(value);
  }

  // Columns [first, first + 16 kPacks) of every row of X; Part: the last ones.
  template <int kPacks, class Count>
  void add_band(std::int64_t first, Count count) const {
    std::int64_t m = 0;
    for (; m + 2 <= op_.m; m += 2) band<2, kPacks>(m, first, count);
    if (m < op_.m) band<1, kPacks>(m, first, count);
  }

  template <int kRows, int kPacks, class Count>
  void band(std::int64_t m, std::int64_t first, Count count) const {
    F32x16 sums[kRows][kPacks] = {};
    const T* w = w_ + first;
    for (std::int64_t k = 0; k < op_.k; ++k, w += op_.n) {
      const std::ptrdiff_t ahead = kRowsAhead * op_.n * static_cast<std::ptrdiff_t>(sizeof(T));
#pragma GCC unroll 8
      for (int p = 0; p < kPacks; ++p) {
        simd::prefetch_ahead(w + p * kLanes, ahead);
        const F32x16 weights = simd::load<F32x16>(w + p * kLanes, count);
#pragma GCC unroll 2
        for (int r = 0; r < kRows; ++r) sums[r][p] += x_[(m + r) * op_.k + k] * weights;
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int p = 0; p < kPacks; ++p) {
        F32x16 total = sums[r][p];
        if (bias_ != nullptr) total += simd::load<F32x16>(bias_ + first + p * kLanes, count);
        simd::store(y_ + (m + r) * op_.n + first + p * kLanes, total, count);
      }
    }
  }

  const RowProducts& op_;
  const float* const x_;
  const T* const w_;
  const T* const bias_;
  T* const y_;
};

template <class T>
void multiply(const RowProducts& op, const void* x, const void* w, void* y) {
  static thread_local Scratch scratch;
  const auto* from = static_cast<const T*>(x);
  const float* wide = nullptr;
  if constexpr (std::is_same_v<T, float>) {
    wide = from;
  } else {
    float* to = scratch.get<float>(op.m * op.k);
    simd::for_packs<F32x16>(
        op.m * op.k, [&](std::int64_t i, auto part) { simd::store(to + i, simd::load<F32x16>(from + i, part), part); });
    wide = to;
  }
  Products<T>(op, wide, static_cast<const T*>(w), static_cast<T*>(y)).run();
}

}  // namespace

bool are_few_rows(std::int64_t m, DType dtype) {
  return m <= kMostProductRows && (dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16);
}

void multiply_rows(const RowProducts& op, const void* x, const void* w, void* y) {
  require(op.m >= 0 && op.n >= 0 && op.k >= 0 && are_few_rows(op.m, op.dtype),
          "products of {} rows of {} by {} {} values; at most {} rows of fp32, bf16 or fp16", op.m, op.k, op.n,
          name(op.dtype), kMostProductRows);
  if (op.m == 0 || op.n == 0) return;
  switch (op.dtype) {
    case DType::kBF16:
      return multiply<bf16>(op, x, w, y);
    case DType::kF16:
      return multiply<f16>(op, x, w, y);
    default:
      return multiply<float>(op, x, w, y);
  }
}

}  // namespace loom::kernels
