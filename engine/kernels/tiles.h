// How the fused kernels cut their work: by shape alone, so that results do not depend on the number of threads. Private
// to engine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/core/parallel.h"
#include "engine/core/rounding.h"
#include "engine/kernels/simd.h"

namespace loom::kernels {

inline constexpr std::int64_t kTileElems = 64 * 1024;
inline constexpr std::int64_t kMaxRowTiles = 64;

// Calls body(begin, count) for consecutive pieces of [0, size), `piece` long but for the last.
template <class Body>
void for_pieces(std::int64_t size, std::int64_t piece, Body&& body) {
  parallel_for(ceil_div(size, piece), [&](std::int64_t tile) {
    const std::int64_t begin = tile * piece;
    body(begin, std::min(piece, size - begin));
  });
}

// Rows of `row_elems` in tiles of about kTileElems.
inline std::int64_t rows_of_tile(std::int64_t row_elems) {
  return std::max<std::int64_t>(1, kTileElems / std::max<std::int64_t>(1, row_elems));
}

// Rows in at most kMaxRowTiles tiles, for kernels that keep a partial sum a tile.
inline std::int64_t rows_of_partial(std::int64_t rows) {
  return std::max<std::int64_t>(16, ceil_div(rows, kMaxRowTiles));
}

// y[i] = op(x[i]...), packs at a time. Large outputs that are not also inputs are streamed.
template <class V, class Out, class Op, class... In>
void map(std::int64_t elems, Out* y, Op op, const In*... x) {
  const bool in_place = ((static_cast<const void*>(x) == static_cast<const void*>(y)) || ...);
  const bool streaming = !in_place && simd::streams(y, 1, elems * static_cast<std::int64_t>(sizeof(Out)));
  simd::with_store(streaming, [&](auto put) {
    for_pieces(elems, kTileElems, [&](std::int64_t begin, std::int64_t count) {
      simd::put_packs<V>(count, y + begin, put, [op, ... from = x + begin](std::int64_t i, auto part) {
        (simd::prefetch_ahead(from + i), ...);
        return op(simd::load<V>(from + i, part)...);
      });
      put.finish();
    });
  });
}

// Partial sums of columns, one row of `cols` accumulators a tile, added in tile order at the end.
template <class T>
class ColumnPartials {
 public:
  using Sum = simd::Scalar<T>;

  ColumnPartials(std::int64_t tiles, std::int64_t cols)
      : tiles_(tiles), cols_(cols), sums_(static_cast<std::size_t>(tiles * cols)) {}

  Sum* tile(std::int64_t index) { return sums_.data() + index * cols_; }

  void write(T* out) const {
    using V = simd::Pack<T>;
    constexpr std::int64_t kColumns = 1024;
    for_pieces(cols_, kColumns, [&](std::int64_t begin, std::int64_t count) {
      simd::for_packs<V>(count, [&](std::int64_t i, auto part) {
        V total{};
        for (std::int64_t t = 0; t < tiles_; ++t) total += simd::load<V>(sums_.data() + t * cols_ + begin + i, part);
        simd::store(out + begin + i, total, part);
      });
    });
  }

 private:
  const std::int64_t tiles_;
  const std::int64_t cols_;
  std::vector<Sum> sums_;
};

}  // namespace loom::kernels
