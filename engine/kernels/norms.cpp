#include <cmath>
#include <vector>

#include "engine/kernels/dispatch.h"
#include "engine/kernels/fused.h"
#include "engine/kernels/tiles.h"

namespace loom::kernels {
namespace {

using simd::for_packs;
using simd::keep;
using simd::load;
using simd::put_packs;
using simd::sum_packs;

template <class T>
bool streams_rows(const T* to, std::int64_t rows, std::int64_t dim) {
  return simd::streams(to, rows, dim * static_cast<std::int64_t>(sizeof(T)));
}

// The same place in the next row, which is read while this one is written.
template <class T>
LOOM_INLINE void prefetch_row(const T* at, std::int64_t dim) {
  simd::prefetch_ahead<2>(at, dim * static_cast<std::int64_t>(sizeof(T)));
}

// The weights in the arithmetic type: they are read once a row.
template <class T>
std::vector<simd::Scalar<T>> widened(std::int64_t dim, const T* weight) {
  using V = simd::Pack<T>;
  std::vector<simd::Scalar<T>> wide(static_cast<std::size_t>(dim));
  for_packs<V>(dim, [&](std::int64_t i, auto part) { simd::store(wide.data() + i, load<V>(weight + i, part), part); });
  return wide;
}

// Where the rows of dx go. Rows that are added to a sum are kept one at a time, and their sums are not streamed.
template <class T>
class GradientRows {
 public:
  GradientRows(const Norm& op, void* dx)
      : dim_(op.dim), dx_(static_cast<T*>(dx)), sum_(static_cast<T*>(op.add_dx_to)), rows_(op.rows) {}

  bool streams() const { return sum_ == nullptr && streams_rows(dx_, rows_, dim_); }
  std::vector<T> room() const { return std::vector<T>(sum_ == nullptr ? 0 : static_cast<std::size_t>(dim_)); }
  T* row(std::int64_t index, std::vector<T>& room) const { return sum_ == nullptr ? dx_ + index * dim_ : room.data(); }
  void add(std::int64_t index, const std::vector<T>& room) const {
    if (sum_ == nullptr) return;
    using V = simd::Pack<T>;
    T* const to = sum_ + index * dim_;
    for_packs<V>(dim_, [&](std::int64_t i, auto part) {
      simd::store(to + i, load<V>(to + i, part) + load<V>(room.data() + i, part), part);
    });
  }

 private:
  const std::int64_t dim_;
  T* const dx_;
  T* const sum_;
  const std::int64_t rows_;
};

template <class T>
void rms_forward(std::int64_t rows, std::int64_t dim, double eps, const T* x, const T* weight, T* y,
                 simd::Scalar<T>* rstd) {
  using V = simd::Pack<T>;
  using S = simd::Scalar<T>;
  const std::vector<S> wide_weight = widened(dim, weight);
  const S* w = wide_weight.data();
  simd::with_store(streams_rows(y, rows, dim), [&](auto put) {
    for_pieces(rows, rows_of_tile(dim), [&](std::int64_t begin, std::int64_t count) {
      for (std::int64_t row = begin; row < begin + count; ++row) {
        const T* in = x + row * dim;
        T* out = y + row * dim;
        const S squares = sum_packs<V>(dim, [&](std::int64_t i, auto part) {
          const V v = load<V>(in + i, part);
          return v * v;
        });
        const S r = 1 / std::sqrt(squares / static_cast<S>(dim) + static_cast<S>(eps));
        rstd[row] = r;
        put_packs<V>(dim, out, put, [=](std::int64_t i, auto part) {
          prefetch_row(in + i, dim);
          return load<V>(in + i, part) * r * load<V>(w + i, part);
        });
      }
      put.finish();
    });
  });
}

// With n = x * rstd and g = dy * weight: dx = rstd * (g - n * mean(g * n)), dweight = sum over rows of dy * n.
template <class T>
void rms_backward(const Norm& op, const T* x, const T* weight, const simd::Scalar<T>* rstd, const T* dy, T* dx,
                  T* dweight) {
  using V = simd::Pack<T>;
  using S = simd::Scalar<T>;
  const std::int64_t rows = op.rows, dim = op.dim;
  const GradientRows<T> gradients(op, dx);
  const std::vector<S> wide_weight = widened(dim, weight);
  const S* w = wide_weight.data();
  const std::int64_t block = rows_of_partial(rows);
  ColumnPartials<T> partials(ceil_div(rows, block), dim);
  simd::with_store(gradients.streams(), [&](auto put) {
    for_pieces(rows, block, [&](std::int64_t begin, std::int64_t count) {
      S* sums = partials.tile(begin / block);
      std::vector<T> room = gradients.room();
      for (std::int64_t row = begin; row < begin + count; ++row) {
        const T* in = x + row * dim;
        const T* grad = dy + row * dim;
        const S r = rstd[row];
        const S dot = sum_packs<V>(dim, [&](std::int64_t i, auto part) {
          prefetch_row(in + i, dim);  // in both passes, so that memory is busy in both
          return load<V>(grad + i, part) * load<V>(w + i, part) * load<V>(in + i, part);
        });
        const S mean = dot * r / static_cast<S>(dim);
        put_packs<V>(dim, gradients.row(row, room), put, [=](std::int64_t i, auto part) {
          prefetch_row(grad + i, dim);
          const V n = load<V>(in + i, part) * r;
          const V d = load<V>(grad + i, part);
          simd::store(sums + i, load<V>(sums + i, part) + d * n, part);
          return (d * load<V>(w + i, part) - n * mean) * r;
        });
        gradients.add(row, room);
      }
      put.finish();
    });
  });
  partials.write(dweight);
}

// One of each a row.
template <class S>
struct Statistics {
  S* mean;
  S* rstd;
};

template <class T>
void layer_forward(std::int64_t rows, std::int64_t dim, double eps, const T* x, const T* weight, const T* bias, T* y,
                   Statistics<simd::Scalar<T>> statistics) {
  using V = simd::Pack<T>;
  using S = simd::Scalar<T>;
  const std::vector<S> wide_weight = widened(dim, weight);
  const S* w = wide_weight.data();
  simd::with_store(streams_rows(y, rows, dim), [&](auto put) {
    for_pieces(rows, rows_of_tile(dim), [&](std::int64_t begin, std::int64_t count) {
      for (std::int64_t row = begin; row < begin + count; ++row) {
        const T* in = x + row * dim;
        T* out = y + row * dim;
        const S m =
            sum_packs<V>(dim, [&](std::int64_t i, auto part) { return load<V>(in + i, part); }) / static_cast<S>(dim);
        const S squares = sum_packs<V>(dim, [&](std::int64_t i, auto part) {
          const V v = keep(load<V>(in + i, part) - m, part);
          return v * v;
        });
        const S r = 1 / std::sqrt(squares / static_cast<S>(dim) + static_cast<S>(eps));
        statistics.mean[row] = m;
        statistics.rstd[row] = r;
        put_packs<V>(dim, out, put, [=](std::int64_t i, auto part) {
          prefetch_row(in + i, dim);
          const V n = (load<V>(in + i, part) - m) * r;
          return n * load<V>(w + i, part) + load<V>(bias + i, part);
        });
      }
      put.finish();
    });
  });
}

// With n = (x - mean) * rstd and g = dy * weight: dx = rstd * (g - mean(g) - n * mean(g * n)).
template <class T>
void layer_backward(const Norm& op, const T* x, const T* weight, Statistics<const simd::Scalar<T>> statistics,
                    const T* dy, const LayerNormGradients& to) {
  using V = simd::Pack<T>;
  using S = simd::Scalar<T>;
  const std::int64_t rows = op.rows, dim = op.dim;
  const GradientRows<T> gradients(op, to.dx);
  const std::vector<S> wide_weight = widened(dim, weight);
  const S* w = wide_weight.data();
  const std::int64_t block = rows_of_partial(rows);
  ColumnPartials<T> weight_partials(ceil_div(rows, block), dim);
  ColumnPartials<T> bias_partials(ceil_div(rows, block), dim);
  simd::with_store(gradients.streams(), [&](auto put) {
    for_pieces(rows, block, [&](std::int64_t begin, std::int64_t count) {
      std::vector<T> room = gradients.room();
      S* weight_sums = weight_partials.tile(begin / block);
      S* bias_sums = bias_partials.tile(begin / block);
      for (std::int64_t row = begin; row < begin + count; ++row) {
        const T* in = x + row * dim;
        const T* grad = dy + row * dim;
        const S m = statistics.mean[row];
        const S r = statistics.rstd[row];
        const S mean_g = sum_packs<V>(dim, [&](std::int64_t i,
                                               auto part) { return load<V>(grad + i, part) * load<V>(w + i, part); }) /
                         static_cast<S>(dim);
        const S dot = sum_packs<V>(dim, [&](std::int64_t i, auto part) {
          prefetch_row(in + i, dim);
          return load<V>(grad + i, part) * load<V>(w + i, part) * keep(load<V>(in + i, part) - m, part);
        });
        const S mean_gn = dot * r / static_cast<S>(dim);
        put_packs<V>(dim, gradients.row(row, room), put, [=](std::int64_t i, auto part) {
          prefetch_row(grad + i, dim);
          const V n = (load<V>(in + i, part) - m) * r;
          const V d = load<V>(grad + i, part);
          simd::store(weight_sums + i, load<V>(weight_sums + i, part) + d * n, part);
          simd::store(bias_sums + i, load<V>(bias_sums + i, part) + d, part);
          return (d * load<V>(w + i, part) - mean_g - n * mean_gn) * r;
        });
        gradients.add(row, room);
      }
      put.finish();
    });
  });
  weight_partials.write(static_cast<T*>(to.dweight));
  bias_partials.write(static_cast<T*>(to.dbias));
}

template <class T>
const T* in(const void* data) {
  return static_cast<const T*>(data);
}
template <class T>
T* out(void* data) {
  return static_cast<T*>(data);
}

}  // namespace

void rms_norm_forward(const Norm& op, const void* x, const void* weight, void* y, void* rstd) {
  visit_float_dtype("rms_norm_forward", op.dtype, [&]<class T>() {
    rms_forward<T>(op.rows, op.dim, op.eps, in<T>(x), in<T>(weight), out<T>(y), out<simd::Scalar<T>>(rstd));
  });
}

void rms_norm_backward(const Norm& op, const void* x, const void* weight, const void* rstd, const void* dy, void* dx,
                       void* dweight) {
  visit_float_dtype("rms_norm_backward", op.dtype, [&]<class T>() {
    rms_backward<T>(op, in<T>(x), in<T>(weight), in<simd::Scalar<T>>(rstd), in<T>(dy), out<T>(dx), out<T>(dweight));
  });
}

void layer_norm_forward(const Norm& op, const void* x, const void* weight, const void* bias, void* y, void* mean,
                        void* rstd) {
  visit_float_dtype("layer_norm_forward", op.dtype, [&]<class T>() {
    using S = simd::Scalar<T>;
    layer_forward<T>(op.rows, op.dim, op.eps, in<T>(x), in<T>(weight), in<T>(bias), out<T>(y),
                     {out<S>(mean), out<S>(rstd)});
  });
}

void layer_norm_backward(const Norm& op, const void* x, const void* weight, const void* mean, const void* rstd,
                         const void* dy, const LayerNormGradients& gradients) {
  visit_float_dtype("layer_norm_backward", op.dtype, [&]<class T>() {
    using S = simd::Scalar<T>;
    layer_backward<T>(op, in<T>(x), in<T>(weight), {in<S>(mean), in<S>(rstd)}, in<T>(dy), gradients);
  });
}

}  // namespace loom::kernels
