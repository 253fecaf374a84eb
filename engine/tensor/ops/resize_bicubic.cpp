#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "engine/core/shape_text.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/tiles.h"
#include "engine/tensor/ops/support.h"
#include "engine/tensor/ops/vision.h"

namespace loom::ops {
namespace {

// For each place of a line, the places of another line that it is a sum of, with their weights.
template <class Real>
using Line = std::vector<std::vector<std::pair<std::int64_t, Real>>>;

// The cubic kernel with A = -0.75, at a distance of at most 1, and from 1 to 2.
template <class Real>
Real near_weight(Real x) {
  constexpr Real kA{-0.75};
  return ((kA + 2) * x - (kA + 3)) * x * x + 1;
}
template <class Real>
Real far_weight(Real x) {
  constexpr Real kA{-0.75};
  return ((kA * x - 5 * kA) * x + 8 * kA) * x - 4 * kA;
}

// `size` places between `from` others; places outside are the border's.
template <class Real>
Line<Real> resized(std::int64_t from, std::int64_t size) {
  const Real scale = static_cast<Real>(from) / static_cast<Real>(size), half{0.5};
  Line<Real> line(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) {
    const Real place = scale * (static_cast<Real>(i) + half) - half;
    const Real low = std::floor(place), t = place - low;
    const Real weights[] = {far_weight(t + 1), near_weight(t), near_weight(1 - t), far_weight(2 - t)};
    for (std::int64_t tap = 0; tap < 4; ++tap) {
      const auto neighbour = std::clamp<std::int64_t>(static_cast<std::int64_t>(low) + tap - 1, 0, from - 1);
      line[static_cast<std::size_t>(i)].emplace_back(neighbour, weights[tap]);
    }
  }
  return line;
}

// The other way: which of the places of `line` use each of its `from` places.
template <class Real>
Line<Real> transposed(const Line<Real>& line, std::int64_t from) {
  Line<Real> users(static_cast<std::size_t>(from));
  for (std::size_t i = 0; i < line.size(); ++i) {
    for (const auto& [place, weight] : line[i])
      users[static_cast<std::size_t>(place)].emplace_back(static_cast<std::int64_t>(i), weight);
  }
  return users;
}

// to[r, c] is the sum of from[a, b] over the taps a of r and b of c, in their order.
template <class T, class Real>
void sum_taps(const Tensor& from, const Tensor& to, const Line<Real>& rows, const Line<Real>& columns) {
  using V = kernels::simd::Pack<T>;
  const std::int64_t dim = to.shape()[2], width = to.shape()[1], from_width = from.shape()[1];
  kernels::for_pieces(to.shape()[0] * width, kernels::rows_of_tile(dim), [&](std::int64_t begin, std::int64_t count) {
    for (std::int64_t at = begin; at < begin + count; ++at) {
      T* y = to.data<T>() + at * dim;
      kernels::simd::for_packs<V>(dim, [&](std::int64_t i, auto part) {
        V total{};
        for (const auto& [row, row_weight] : rows[static_cast<std::size_t>(at / width)]) {
          V of_row{};
          for (const auto& [column, weight] : columns[static_cast<std::size_t>(at % width)]) {
            const T* x = from.data<T>() + (row * from_width + column) * dim + i;
            of_row += kernels::simd::load<V>(x, part) * kernels::simd::splat<V>(static_cast<double>(weight));
          }
          total += of_row * kernels::simd::splat<V>(static_cast<double>(row_weight));
        }
        kernels::simd::store(y + i, total, part);
      });
    }
  });
}

// From x [h,w,D] to y, or with `back` from a gradient of y's shape to one of x's.
void resize(const Tensor& from, const Tensor& to, bool back) {
  const auto run = [&]<class T, class Real>() {
    const Shape &large = (back ? from : to).shape(), &small = (back ? to : from).shape();
    Line<Real> rows = resized<Real>(small[0], large[0]), columns = resized<Real>(small[1], large[1]);
    if (back) rows = transposed(rows, small[0]), columns = transposed(columns, small[1]);
    sum_taps<T>(from, to, rows, columns);
  };
  kernels::visit_float_dtype("resize_bicubic", from.dtype(), [&]<class T>() {
    using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;
    run.template operator()<T, Real>();
  });
}

// A product and a sum for each of 16 neighbours.
Cost cost_of(const Tensor& from, const Tensor& to, const Tensor& resized) {
  return pass_cost(32.0 * static_cast<double>(resized.numel()), {from}, {to});
}

}  // namespace

Tensor resize_bicubic(const Tensor& x, std::int64_t height, std::int64_t width) {
  const Shape s = x.shape();
  check_model(s.ndim() == 3 && s[0] > 0 && s[1] > 0 && height > 0 && width > 0,
              "resize_bicubic: {} to {} x {}; [height, width, dim] with at least one row and column is needed", s,
              height, width);
  Tensor y = Tensor::empty({height, width, s[2]}, x.dtype());
  launch("resize_bicubic", cost_of(x, y, y), [&] { resize(x, y, false); });
  autograd::record("resize_bicubic", {x}, {}, {y}, [=](Saved, const Grads& grads, const Needs&) -> Grads {
    Tensor dx = Tensor::empty(s, grads[0].dtype());
    launch("resize_bicubic_grad", cost_of(grads[0], dx, grads[0]), [&] { resize(grads[0], dx, true); });
    return {dx};
  });
  return y;
}

}  // namespace loom::ops
