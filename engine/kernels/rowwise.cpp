#include "engine/kernels/rowwise.h"

#include <cstring>
#include <type_traits>
#include <vector>

#include "engine/kernels/dispatch.h"
#include "engine/kernels/log_sum_exp.h"
#include "engine/kernels/tiles.h"

namespace loom::kernels {
namespace {

template <class Body>
void for_each_row(std::int64_t rows, std::int64_t cols, Body&& body) {
  for_pieces(rows, rows_of_tile(cols), [&](std::int64_t begin, std::int64_t count) {
    for (std::int64_t row = begin; row < begin + count; ++row) body(row);
  });
}

// `numbers` has room for the row in statistics; it may be y.
template <class T, class Y>
void softmax_row(std::int64_t cols, const T* x, simd::Scalar<T>* numbers, Y* y) {
  using V = simd::Pack<T>;
  const simd::Scalar<T> top = largest(cols, x);
  const auto sum = simd::sum_packs<V>(cols, [&](std::int64_t i, auto part) {
    const V e = simd::exp(simd::load<V>(x + i, part) - top);
    simd::store(numbers + i, e, part);
    return simd::keep(e, part);
  });
  const auto factor = 1 / sum;
  simd::for_packs<V>(
      cols, [&](std::int64_t i, auto part) { simd::store(y + i, simd::load<V>(numbers + i, part) * factor, part); });
}

// Calls body with the type of y: the type of statistics, or T.
template <class T, class Body>
void visit_result(DType dtype, DType y_dtype, Body&& body) {
  if (y_dtype == dtype) return body.template operator()<T>();
  body.template operator()<simd::Scalar<T>>();
}

}  // namespace

void row_sum(DType dtype, DType out_dtype, std::int64_t rows, std::int64_t cols, double factor, const void* x,
             void* out) {
  visit_float_dtype("row_sum", dtype, [&]<class T>() {
    visit_float_dtype("row_sum", out_dtype, [&]<class Out>() {
      using V = simd::Pack<T>;
      for_each_row(rows, cols, [&](std::int64_t row) {
        const T* in = static_cast<const T*>(x) + row * cols;
        const auto sum =
            simd::sum_packs<V>(cols, [&](std::int64_t i, auto part) { return simd::load<V>(in + i, part); });
        static_cast<Out*>(out)[row] = simd::from_double<Out>(static_cast<double>(sum) * factor);
      });
    });
  });
}

void row_fill(DType dtype, std::int64_t rows, std::int64_t cols, double factor, const void* x, void* y) {
  visit_float_dtype("row_fill", dtype, [&]<class T>() {
    for_each_row(rows, cols, [&](std::int64_t row) {
      const double value = factor * static_cast<double>(static_cast<const simd::Scalar<T>*>(x)[row]);
      std::fill_n(static_cast<T*>(y) + row * cols, cols, simd::from_double<T>(value));
    });
  });
}

void softmax_forward(DType dtype, DType y_dtype, std::int64_t rows, std::int64_t cols, const void* x, void* y) {
  visit_float_dtype("softmax_forward", dtype, [&]<class T>() {
    using S = simd::Scalar<T>;
    visit_result<T>(dtype, y_dtype, [&]<class Y>() {
      for_each_row(rows, cols, [&](std::int64_t row) {
        const T* in = static_cast<const T*>(x) + row * cols;
        Y* out = static_cast<Y*>(y) + row * cols;
        if constexpr (std::is_same_v<Y, S>) {
          softmax_row(cols, in, out, out);
        } else {
          thread_local std::vector<S> numbers;
          if (static_cast<std::int64_t>(numbers.size()) < cols) numbers.resize(static_cast<std::size_t>(cols));
          softmax_row(cols, in, numbers.data(), out);
        }
      });
    });
  });
}

void softmax_backward(DType dtype, DType y_dtype, std::int64_t rows, std::int64_t cols, const void* y, const void* dy,
                      void* dx) {
  visit_float_dtype("softmax_backward", dtype, [&]<class T>() {
    using V = simd::Pack<T>;
    visit_result<T>(dtype, y_dtype, [&]<class Y>() {
      for_each_row(rows, cols, [&](std::int64_t row) {
        const auto* p = static_cast<const Y*>(y) + row * cols;
        const auto* d = static_cast<const Y*>(dy) + row * cols;
        T* out = static_cast<T*>(dx) + row * cols;
        const auto dot = simd::sum_packs<V>(
            cols, [&](std::int64_t i, auto part) { return simd::load<V>(p + i, part) * simd::load<V>(d + i, part); });
        simd::for_packs<V>(cols, [&](std::int64_t i, auto part) {
          simd::store(out + i, (simd::load<V>(d + i, part) - dot) * simd::load<V>(p + i, part), part);
        });
      });
    });
  });
}

void log_softmax_forward(DType dtype, std::int64_t rows, std::int64_t cols, const void* x, void* y) {
  visit_float_dtype("log_softmax_forward", dtype, [&]<class T>() {
    using V = simd::Pack<T>;
    for_each_row(rows, cols, [&](std::int64_t row) {
      const T* in = static_cast<const T*>(x) + row * cols;
      T* out = static_cast<T*>(y) + row * cols;
      const auto log_sum_exp = static_cast<simd::Scalar<T>>(log_sum_exp_of(cols, in));
      simd::for_packs<V>(cols, [&](std::int64_t i, auto part) {
        simd::store(out + i, simd::load<V>(in + i, part) - log_sum_exp, part);
      });
    });
  });
}

void log_softmax_backward(DType dtype, std::int64_t rows, std::int64_t cols, const void* y, const void* dy, void* dx) {
  visit_float_dtype("log_softmax_backward", dtype, [&]<class T>() {
    using V = simd::Pack<T>;
    for_each_row(rows, cols, [&](std::int64_t row) {
      const T* p = static_cast<const T*>(y) + row * cols;
      const T* d = static_cast<const T*>(dy) + row * cols;
      T* out = static_cast<T*>(dx) + row * cols;
      const auto total =
          simd::sum_packs<V>(cols, [&](std::int64_t i, auto part) { return simd::load<V>(d + i, part); });
      simd::for_packs<V>(cols, [&](std::int64_t i, auto part) {
        simd::store(out + i, simd::load<V>(d + i, part) - simd::exp(simd::load<V>(p + i, part)) * total, part);
      });
    });
  });
}

void log_sum_exp_forward(DType dtype, std::int64_t rows, std::int64_t cols, const void* x, void* y) {
  visit_float_dtype("log_sum_exp_forward", dtype, [&]<class T>() {
    for_each_row(rows, cols, [&](std::int64_t row) {
      const double value = log_sum_exp_of(cols, static_cast<const T*>(x) + row * cols);
      static_cast<simd::Scalar<T>*>(y)[row] = static_cast<simd::Scalar<T>>(value);
    });
  });
}

void log_sum_exp_backward(DType dtype, std::int64_t rows, std::int64_t cols, const void* x, const void* y,
                          const void* dy, void* dx) {
  visit_float_dtype("log_sum_exp_backward", dtype, [&]<class T>() {
    using V = simd::Pack<T>;
    for_each_row(rows, cols, [&](std::int64_t row) {
      const T* in = static_cast<const T*>(x) + row * cols;
      T* out = static_cast<T*>(dx) + row * cols;
      const auto log_sum = static_cast<const simd::Scalar<T>*>(y)[row];
      const auto factor = static_cast<const simd::Scalar<T>*>(dy)[row];
      simd::for_packs<V>(cols, [&](std::int64_t i, auto part) {
        simd::store(out + i, simd::exp(simd::load<V>(in + i, part) - log_sum) * factor, part);
      });
    });
  });
}

CrossEntropySum nll_forward(const CrossEntropy& op, const void* log_probs, const void* targets) {
  CrossEntropySum sum;
  visit_float_dtype("nll_forward", op.dtype, [&]<class T>() {
    visit_index_dtype("nll_forward", op.target_dtype, [&]<class I>() {
      const auto* target = static_cast<const I*>(targets);
      check_targets(op.rows, op.vocab, target, op.ignore_index);
      for (std::int64_t row = 0; row < op.rows; ++row) {
        if (target[row] == op.ignore_index) continue;
        sum.loss -= simd::to_double(static_cast<const T*>(log_probs)[row * op.vocab + target[row]]);
        sum.rows += 1;
      }
    });
  });
  return sum;
}

void nll_backward(const CrossEntropy& op, const void* targets, double row_scale, void* dlog_probs) {
  visit_float_dtype("nll_backward", op.dtype, [&]<class T>() {
    visit_index_dtype("nll_backward", op.target_dtype, [&]<class I>() {
      const auto* target = static_cast<const I*>(targets);
      check_targets(op.rows, op.vocab, target, op.ignore_index);
      for_each_row(op.rows, op.vocab, [&](std::int64_t row) {
        T* out = static_cast<T*>(dlog_probs) + row * op.vocab;
        std::fill_n(out, op.vocab, T{});
        if (target[row] != op.ignore_index) out[target[row]] = simd::from_double<T>(-row_scale);
      });
    });
  });
}

}  // namespace loom::kernels
