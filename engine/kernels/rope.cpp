#include <array>
#include <vector>

#include "engine/kernels/dispatch.h"
#include "engine/kernels/fused.h"
#include "engine/kernels/tiles.h"

namespace loom::kernels {
namespace {

// Row `position` of a [S, D] table in the arithmetic type: the row itself if it has that type, else widened into
// `row`.
template <class S>
const S* table_row(DType dtype, const void* table, std::int64_t position, std::int64_t head_dim, S* row) {
  constexpr DType kArithmetic = std::is_same_v<S, float> ? DType::kF32 : DType::kF64;
  if (dtype == kArithmetic) return static_cast<const S*>(table) + position * head_dim;
  visit_float_dtype("rope table", dtype, [&]<class T>() {
    using V = std::conditional_t<std::is_same_v<S, double>, double, simd::F32x16>;
    const T* from = static_cast<const T*>(table) + position * head_dim;
    simd::for_packs<V>(head_dim,
                       [&](std::int64_t i, auto part) { simd::store(row + i, simd::load<V>(from + i, part), part); });
  });
  return row;
}

// The pair (a, b) of the two halves:  y_a = a cos_a - b sin_a, y_b = b cos_b + a sin_b;
// transposed:                         y_a = a cos_a + b sin_b, y_b = b cos_b - a sin_a.
template <bool kBackward, class T, class Put>
void rotate_head(std::int64_t half, const T* x, const simd::Scalar<T>* cos, const simd::Scalar<T>* sin, T* y, Put put) {
  using V = simd::Pack<T>;
  simd::put_packs<V>(half, y, y + half, put, [=](std::int64_t i, auto part) {
    simd::prefetch_ahead(x + i);
    simd::prefetch_ahead(x + half + i);
    const V a = simd::load<V>(x + i, part);
    const V b = simd::load<V>(x + half + i, part);
    const V a_cos = a * simd::load<V>(cos + i, part);
    const V b_cos = b * simd::load<V>(cos + half + i, part);
    const V sin_a = simd::load<V>(sin + i, part);
    const V sin_b = simd::load<V>(sin + half + i, part);
    return kBackward ? std::array{a_cos + b * sin_b, b_cos - a * sin_a}
                     : std::array{a_cos - b * sin_a, b_cos + a * sin_b};
  });
}

template <bool kBackward, class T>
void rotate(const Rope& op, const T* x, const void* cos, const void* sin, T* y) {
  using S = simd::Scalar<T>;
  const std::int64_t head_dim = op.head_dim, row_elems = op.heads * head_dim;
  const bool streaming =
      x != y && simd::streams(y, 2 * op.batch * op.seq * op.heads, head_dim / 2 * static_cast<std::int64_t>(sizeof(T)));
  simd::with_store(streaming, [&](auto put) {
    for_pieces(op.batch * op.seq, rows_of_tile(row_elems), [&](std::int64_t begin, std::int64_t count) {
      std::vector<S> cos_row(static_cast<std::size_t>(head_dim));
      std::vector<S> sin_row(static_cast<std::size_t>(head_dim));
      for (std::int64_t row = begin; row < begin + count; ++row) {
        const S* cosines = table_row(op.table_dtype, cos, row % op.seq, head_dim, cos_row.data());
        const S* sines = table_row(op.table_dtype, sin, row % op.seq, head_dim, sin_row.data());
        for (std::int64_t head = 0; head < op.heads; ++head) {
          const std::int64_t at = row * row_elems + head * head_dim;
          rotate_head<kBackward>(head_dim / 2, x + at, cosines, sines, y + at, put);
        }
      }
      put.finish();
    });
  });
}

}  // namespace

void rope(const Rope& op, const void* x, const void* cos, const void* sin, void* y) {
  check_model(op.head_dim % 2 == 0, "rope rotates pairs, but head_dim is {}; it must be even", op.head_dim);
  visit_float_dtype("rope", op.dtype, [&]<class T>() {
    const auto* from = static_cast<const T*>(x);
    auto* to = static_cast<T*>(y);
    if (op.backward) {
      rotate<true, T>(op, from, cos, sin, to);
    } else {
      rotate<false, T>(op, from, cos, sin, to);
    }
  });
}

}  // namespace loom::kernels
