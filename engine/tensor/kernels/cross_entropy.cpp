#include <cmath>
#include <limits>
#include <vector>

#include "engine/tensor/kernels/dispatch.h"
#include "engine/tensor/kernels/fused.h"
#include "engine/tensor/kernels/tiles.h"

namespace loom::kernels {
namespace {

constexpr std::int64_t kBlock = 4096;

template <class I>
void check_targets(std::int64_t rows, std::int64_t vocab, const I* targets, std::int64_t ignore_index) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto target = static_cast<std::int64_t>(targets[row]);
    if (target == ignore_index || (target >= 0 && target < vocab)) continue;
    config_error(
        "cross_entropy: target {} in row {} is outside the vocabulary [0, {}); fix the labels, or mark the row "
        "with ignore_index {}",
        target, row, vocab, ignore_index);
  }
}

template <class T>
simd::Scalar<T> largest(std::int64_t elems, const T* x) {
  using V = simd::Pack<T>;
  constexpr double kLowest = -std::numeric_limits<double>::infinity();
  V top[2] = {simd::splat<V>(kLowest), simd::splat<V>(kLowest)};
  std::int64_t i = 0;
  for (; i + 2 * simd::lanes<V> <= elems; i += 2 * simd::lanes<V>) {
    top[0] = simd::max(simd::load<V>(x + i), top[0]);
    top[1] = simd::max(simd::load<V>(x + i + simd::lanes<V>), top[1]);
  }
  auto result = simd::max_lanes(simd::max(top[0], top[1]));
  for (; i < elems; ++i) result = std::max(result, static_cast<simd::Scalar<T>>(x[i]));
  return result;
}

template <class T>
simd::Scalar<T> sum_of_exp(std::int64_t elems, const T* x, simd::Scalar<T> shift) {
  using V = simd::Pack<T>;
  return simd::sum_packs<V>(elems, [&](std::int64_t i, auto part) {
    simd::prefetch_ahead(x + i, kBlock * static_cast<std::int64_t>(sizeof(T)));  // the next block
    return simd::keep(simd::exp(simd::load<V>(x + i, part) - shift), part);
  });
}

// log(sum(exp(x))) in one pass over memory: blocks that fit the L1 cache are read for their maximum, then for their
// sum, and the running sum is rescaled when the maximum grows. A NaN or +inf anywhere makes NaN, as in PyTorch.
template <class T>
double log_sum_exp_of(std::int64_t vocab, const T* x) {
  constexpr double kLowest = -std::numeric_limits<double>::infinity();
  double top = kLowest;
  double sum = 0;
  for (std::int64_t begin = 0; begin < vocab; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, vocab - begin);
    const double block_top = static_cast<double>(largest(count, x + begin));
    if (block_top > top) {
      if (sum != 0) sum *= std::exp(top - block_top);
      top = block_top;
    }
    const double shift = top == kLowest ? 0 : top;
    sum += static_cast<double>(sum_of_exp(count, x + begin, static_cast<simd::Scalar<T>>(shift)));
  }
  return top + std::log(sum);
}

template <class T, class I>
CrossEntropySum forward(std::int64_t rows, std::int64_t vocab, const T* logits, const I* targets,
                        std::int64_t ignore_index, simd::Scalar<T>* log_sum_exp) {
  check_targets(rows, vocab, targets, ignore_index);
  const std::int64_t block = rows_of_tile(vocab);
  std::vector<CrossEntropySum> partials(static_cast<std::size_t>(ceil_div(rows, block)));
  for_pieces(rows, block, [&](std::int64_t begin, std::int64_t count) {
    CrossEntropySum partial;
    for (std::int64_t row = begin; row < begin + count; ++row) {
      const T* x = logits + row * vocab;
      const double lse = log_sum_exp_of(vocab, x);
      log_sum_exp[row] = static_cast<simd::Scalar<T>>(lse);
      if (targets[row] == ignore_index) continue;
      partial.loss += lse - simd::to_double(x[targets[row]]);
      partial.rows += 1;
    }
    partials[static_cast<std::size_t>(begin / block)] = partial;
  });
  CrossEntropySum total;
  for (const CrossEntropySum& partial : partials) {
    total.loss += partial.loss;
    total.rows += partial.rows;
  }
  return total;
}

template <class T, class Put>
void backward_row(std::int64_t vocab, const T* x, std::int64_t target, simd::Scalar<T> log_sum_exp,
                  simd::Scalar<T> row_scale, T* dx, Put put) {
  using V = simd::Pack<T>;
  using S = simd::Scalar<T>;
  const V at_target = simd::splat<V>(simd::to_double(x[target]));
  simd::for_packs<V>(vocab, [&](std::int64_t i, auto part) {
    simd::prefetch_ahead(x + i);
    put(dx + i, simd::exp(simd::load<V>(x + i, part) - log_sum_exp) * row_scale, part);
  });
  put.finish();
  simd::store(dx + target, (simd::exp(at_target - log_sum_exp) - S{1}) * row_scale, simd::Part{1});
}

template <class T, class I>
void backward(std::int64_t rows, std::int64_t vocab, const T* logits, const I* targets, std::int64_t ignore_index,
              const simd::Scalar<T>* log_sum_exp, double row_scale, T* dlogits) {
  using S = simd::Scalar<T>;
  check_targets(rows, vocab, targets, ignore_index);
  const bool streaming =
      logits != dlogits && simd::streams(dlogits, rows, vocab * static_cast<std::int64_t>(sizeof(T)));
  simd::with_store(streaming, [&](auto put) {
    for_pieces(rows, rows_of_tile(vocab), [&](std::int64_t begin, std::int64_t count) {
      for (std::int64_t row = begin; row < begin + count; ++row) {
        T* dx = dlogits + row * vocab;
        if (targets[row] == ignore_index) {
          std::fill_n(dx, vocab, T{});
        } else {
          backward_row(vocab, logits + row * vocab, targets[row], log_sum_exp[row], static_cast<S>(row_scale), dx, put);
        }
      }
    });
  });
}

}  // namespace

CrossEntropySum cross_entropy_forward(DType dtype, std::int64_t rows, std::int64_t vocab, const void* logits,
                                      DType target_dtype, const void* targets, std::int64_t ignore_index,
                                      void* log_sum_exp) {
  return visit_float_dtype("cross_entropy_forward", dtype, [&]<class T>() {
    return visit_index_dtype("cross_entropy_forward", target_dtype, [&]<class I>() {
      return forward<T, I>(rows, vocab, static_cast<const T*>(logits), static_cast<const I*>(targets), ignore_index,
                           static_cast<simd::Scalar<T>*>(log_sum_exp));
    });
  });
}

void cross_entropy_backward(DType dtype, std::int64_t rows, std::int64_t vocab, const void* logits, DType target_dtype,
                            const void* targets, std::int64_t ignore_index, const void* log_sum_exp, double row_scale,
                            void* dlogits) {
  visit_float_dtype("cross_entropy_backward", dtype, [&]<class T>() {
    visit_index_dtype("cross_entropy_backward", target_dtype, [&]<class I>() {
      backward<T, I>(rows, vocab, static_cast<const T*>(logits), static_cast<const I*>(targets), ignore_index,
                     static_cast<const simd::Scalar<T>*>(log_sum_exp), row_scale, static_cast<T*>(dlogits));
    });
  });
}

}  // namespace loom::kernels
