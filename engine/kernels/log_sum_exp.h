// Pieces shared by the fused cross-entropies and the composed softmax: a row's maximum, its log-sum-exp, the check of
// targets. Private to engine/kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/core/error.h"
#include "engine/kernels/fused.h"
#include "engine/kernels/simd.h"

namespace loom::kernels {

// Elements that stay in the L1 cache between two passes.
template <class T>
inline constexpr std::int64_t kLogSumExpBlock = 16384 / static_cast<std::int64_t>(sizeof(T));

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

// Of tiles, in their order.
inline CrossEntropySum sum_of(const std::vector<CrossEntropySum>& partials) {
  CrossEntropySum total;
  for (const CrossEntropySum& partial : partials) {
    total.loss += partial.loss;
    total.rows += partial.rows;
  }
  return total;
}

template <class T>
simd::Scalar<T> largest(std::int64_t elems, const T* x) {
  using V = simd::Pack<T>;
  constexpr double kLowest = -std::numeric_limits<double>::infinity();
  const V lowest = simd::splat<V>(kLowest);
  V top[4] = {lowest, lowest, lowest, lowest};
  std::int64_t i = 0;
  for (; i + 4 * simd::lanes<V> <= elems; i += 4 * simd::lanes<V>) {
    for (int k = 0; k < 4; ++k) top[k] = simd::max(simd::load<V>(x + i + k * simd::lanes<V>), top[k]);
  }
  for (; i + simd::lanes<V> <= elems; i += simd::lanes<V>) top[0] = simd::max(simd::load<V>(x + i), top[0]);
  auto result = simd::max_lanes(simd::max(simd::max(top[0], top[1]), simd::max(top[2], top[3])));
  for (; i < elems; ++i) result = std::max(result, static_cast<simd::Scalar<T>>(x[i]));
  return result;
}

// exp(x) for a sum whose logarithm is kept in fp32; fp64 for fp64.
template <class T, class V>
LOOM_INLINE V exp_of_summand(V x) {
  if constexpr (std::is_same_v<V, double>) {
    return simd::exp(x);
  } else {
    constexpr int kDegree = std::is_same_v<T, float> ? 5 : 4;
    return simd::exp2<kDegree>(x * simd::kLog2E);
  }
}

template <class T>
simd::Scalar<T> sum_of_exp(std::int64_t elems, const T* x, simd::Scalar<T> shift) {
  using V = simd::Pack<T>;
  return simd::sum_packs<V>(elems, [&](std::int64_t i, auto part) {
    simd::prefetch_ahead(x + i, kLogSumExpBlock<T> * static_cast<std::int64_t>(sizeof(T)));  // the next block
    return simd::keep(exp_of_summand<T>(simd::load<V>(x + i, part) - shift), part);
  });
}

// The largest x, -inf of none, and the sum of exp(x - largest).
struct MaxAndSum {
  double top = 0;
  double sum = 0;
};

// In one pass over memory: blocks that fit the L1 cache are read for their maximum, then for their sum, and the running
// sum is rescaled when the maximum grows. A NaN or +inf anywhere makes the sum NaN.
template <class T>
LOOM_INLINE MaxAndSum max_and_sum_of(std::int64_t vocab, const T* x) {
  constexpr double kLowest = -std::numeric_limits<double>::infinity();
  double top = kLowest;
  double sum = 0;
  for (std::int64_t begin = 0; begin < vocab; begin += kLogSumExpBlock<T>) {
    const std::int64_t count = std::min(kLogSumExpBlock<T>, vocab - begin);
    const double block_top = static_cast<double>(largest(count, x + begin));
    if (block_top > top) {
      if (sum != 0) sum *= std::exp(top - block_top);
      top = block_top;
    }
    const double shift = top == kLowest ? 0 : top;
    sum += static_cast<double>(sum_of_exp(count, x + begin, static_cast<simd::Scalar<T>>(shift)));
  }
  return {top, sum};
}

// log(sum(exp(x))). A NaN or +inf anywhere makes NaN, as in PyTorch.
template <class T>
double log_sum_exp_of(std::int64_t vocab, const T* x) {
  const auto [top, sum] = max_and_sum_of(vocab, x);
  return top + std::log(sum);
}

}  // namespace loom::kernels
