#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "engine/kernels/dispatch.h"
#include "engine/kernels/fused.h"
#include "engine/kernels/tiles.h"

namespace loom::kernels {
namespace {

template <class T>
inline constexpr bool is_half = std::is_same_v<T, bf16> || std::is_same_v<T, f16>;
template <class T>
inline constexpr bool is_float = is_half<T> || std::is_same_v<T, float> || std::is_same_v<T, double>;

// Truncated toward zero; what does not fit becomes the nearest end of the range, NaN becomes 0.
template <class Int>
Int to_integer(double value) {
  constexpr double kLow = static_cast<double>(std::numeric_limits<Int>::min());
  constexpr double kEnd = 2.0 * static_cast<double>(std::uint64_t{1} << (std::numeric_limits<Int>::digits - 1));
  if (value != value) return 0;
  if (value <= kLow) return std::numeric_limits<Int>::min();
  if (value >= kEnd) return std::numeric_limits<Int>::max();
  return static_cast<Int>(value);
}

template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<To, bool>) {
    return simd::to_double(value) != 0;
  } else if constexpr (is_float<From> && is_float<To>) {
    return simd::from_double<To>(simd::to_double(value));
  } else if constexpr (is_float<From>) {
    return to_integer<To>(simd::to_double(value));
  } else if constexpr (is_half<To>) {
    return simd::from_double<To>(static_cast<double>(value));
  } else {
    return static_cast<To>(value);
  }
}

template <class From, class To>
void cast_elements(std::int64_t elems, const From* x, To* y) {
  if constexpr (is_float<From> && is_float<To> && !std::is_same_v<From, double> && !std::is_same_v<To, double>) {
    map<simd::F32x16>(
        elems, y, [](simd::F32x16 v) { return v; }, x);
  } else if constexpr (std::is_same_v<From, bool>) {
    for_pieces(elems, kTileElems, [&](std::int64_t begin, std::int64_t count) {
      const auto* bytes = reinterpret_cast<const unsigned char*>(x);
      for (std::int64_t i = begin; i < begin + count; ++i) y[i] = convert<To>(std::uint8_t{bytes[i] != 0});
    });
  } else {
    for_pieces(elems, kTileElems, [&](std::int64_t begin, std::int64_t count) {
      for (std::int64_t i = begin; i < begin + count; ++i) y[i] = convert<To>(x[i]);
    });
  }
}

void copy_bytes(std::int64_t bytes, const void* x, void* y) {
  constexpr std::int64_t kPiece = 4 * kTileElems;
  for_pieces(bytes, kPiece, [&](std::int64_t begin, std::int64_t count) {
    std::memcpy(static_cast<char*>(y) + begin, static_cast<const char*>(x) + begin, static_cast<std::size_t>(count));
  });
}

}  // namespace

void cast(std::int64_t elems, DType from, const void* x, DType to, void* y) {
  if (from == to) {
    if (x != y) copy_bytes(elems * element_bytes(from), x, y);
    return;
  }
  require(x != y || elems == 0 || element_bytes(from) == element_bytes(to),
          "cast from {} to {} in place, but their elements differ in size; give it another output", name(from),
          name(to));
  visit_dtype(from, [&]<class From>() {
    visit_dtype(to, [&]<class To>() {
      if constexpr (!std::is_same_v<From, To>) {
        cast_elements(elems, static_cast<const From*>(x), static_cast<To*>(y));
      }
    });
  });
}

void add(DType dtype, std::int64_t elems, const void* a, const void* b, void* y) {
  visit_float_dtype("add", dtype, [&]<class T>() {
    using V = simd::Pack<T>;
    map<V>(
        elems, static_cast<T*>(y), [](V u, V v) { return u + v; }, static_cast<const T*>(a), static_cast<const T*>(b));
  });
}

void scale(DType dtype, std::int64_t elems, double factor, const void* x, void* y) {
  if (factor == 1 && x == y && is_floating(dtype)) return;
  visit_float_dtype("scale", dtype, [&]<class T>() {
    using V = simd::Pack<T>;
    const auto f = static_cast<simd::Scalar<T>>(factor);
    map<V>(
        elems, static_cast<T*>(y), [f](V v) { return f * v; }, static_cast<const T*>(x));
  });
}

void axpy(DType dtype, std::int64_t elems, double factor, const void* x, void* y) {
  visit_float_dtype("axpy", dtype, [&]<class T>() {
    using V = simd::Pack<T>;
    const auto f = static_cast<simd::Scalar<T>>(factor);
    map<V>(
        elems, static_cast<T*>(y), [f](V v, V sum) { return sum + f * v; }, static_cast<const T*>(x),
        static_cast<const T*>(y));
  });
}

double sum_of_squares(DType dtype, std::int64_t elems, const void* x) {
  return visit_float_dtype("sum_of_squares", dtype, [&]<class T>() {
    using V = simd::Pack<T>;
    const auto* from = static_cast<const T*>(x);
    std::vector<double> partials(static_cast<std::size_t>(ceil_div(elems, kTileElems)));
    for_pieces(elems, kTileElems, [&](std::int64_t begin, std::int64_t count) {
      partials[static_cast<std::size_t>(begin / kTileElems)] =
          simd::sum_of_squares<V>(count, [at = from + begin](std::int64_t i, auto part) {
            simd::prefetch_ahead(at + i);
            return simd::load<V>(at + i, part);
          });
    });
    double total = 0;
    for (double partial : partials) total += partial;
    return total;
  });
}

void column_sum(DType dtype, std::int64_t rows, std::int64_t cols, const void* dy, void* out) {
  visit_float_dtype("column_sum", dtype, [&]<class T>() {
    using V = simd::Pack<T>;
    constexpr std::int64_t kColumns = 1024;
    const auto* from = static_cast<const T*>(dy);
    const std::int64_t block = rows_of_partial(rows);
    const std::int64_t row_tiles = ceil_div(rows, block);
    ColumnPartials<T> partials(row_tiles, cols);
    const std::int64_t column_tiles = ceil_div(cols, kColumns);
    parallel_for(row_tiles * column_tiles, [&](std::int64_t tile) {
      const std::int64_t first_row = tile / column_tiles * block;
      const std::int64_t first_col = tile % column_tiles * kColumns;
      auto* sums = partials.tile(tile / column_tiles) + first_col;
      for (std::int64_t row = first_row; row < std::min(first_row + block, rows); ++row) {
        const T* values = from + row * cols + first_col;
        simd::for_packs<V>(std::min(kColumns, cols - first_col), [&](std::int64_t i, auto part) {
          simd::store(sums + i, simd::load<V>(sums + i, part) + simd::load<V>(values + i, part), part);
        });
      }
    });
    partials.write(static_cast<T*>(out));
  });
}

}  // namespace loom::kernels
