#include "engine/kernels/routing.h"

#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "engine/kernels/dispatch.h"
#include "engine/kernels/tiles.h"

namespace loom::kernels {
namespace {

// Calls body(i) for rows of `dim` elements, tiles of rows at once.
template <class Body>
void for_each_row(std::int64_t rows, std::int64_t dim, Body&& body) {
  for_pieces(rows, rows_of_tile(dim), [&](std::int64_t begin, std::int64_t count) {
    for (std::int64_t row = begin; row < begin + count; ++row) body(row);
  });
}

// Larger first, NaN before all, of equal ones the lower index.
template <class Real>
bool comes_before(const Real* probs, std::int64_t a, std::int64_t b) {
  const bool a_nan = std::isnan(probs[a]), b_nan = std::isnan(probs[b]);
  if (a_nan != b_nan) return a_nan;
  if (a_nan || probs[a] == probs[b]) return a < b;
  return probs[a] > probs[b];
}

// out = the sum of rows positions[0 .. k), row j times factor(position j).
template <class T, class Factor>
void sum_rows(std::int64_t k, std::int64_t dim, const std::int64_t* positions, const T* rows, T* out, Factor factor) {
  using V = simd::Pack<T>;
  simd::for_packs<V>(dim, [&](std::int64_t i, auto part) {
    V total{};
    for (std::int64_t j = 0; j < k; ++j) {
      total += simd::load<V>(rows + positions[j] * dim + i, part) * factor(positions[j]);
    }
    simd::store(out + i, total, part);
  });
}

template <class T>
simd::Scalar<T> to_scalar(T value) {
  return static_cast<simd::Scalar<T>>(simd::to_double(value));
}

template <class Real>
Real sum_of_chosen(std::int64_t k, const std::int64_t* choices, const Real* probs) {
  Real sum = 0;
  for (std::int64_t j = 0; j < k; ++j) sum += probs[choices[j]];
  return sum;
}

}  // namespace

void top_k(DType dtype, std::int64_t tokens, std::int64_t experts, std::int64_t k, const void* probs,
           std::int64_t* choices) {
  visit_float_dtype("top_k", dtype, [&]<class T>() {
    for_pieces(tokens, rows_of_tile(experts), [&](std::int64_t begin, std::int64_t count) {
      std::vector<std::int64_t> order(static_cast<std::size_t>(experts));
      for (std::int64_t token = begin; token < begin + count; ++token) {
        const auto* p = static_cast<const simd::Scalar<T>*>(probs) + token * experts;
        std::iota(order.begin(), order.end(), 0);
        std::partial_sort(order.begin(), order.begin() + k, order.end(),
                          [p](std::int64_t a, std::int64_t b) { return comes_before(p, a, b); });
        std::copy_n(order.begin(), k, choices + token * k);
      }
    });
  });
}

void routing_weights_forward(DType dtype, const RoutingWeights& op, const void* probs, const std::int64_t* choices,
                             void* weights) {
  visit_float_dtype("routing_weights_forward", dtype, [&]<class T>() {
    using Real = simd::Scalar<T>;
    for_each_row(op.tokens, op.k, [&](std::int64_t token) {
      const Real* p = static_cast<const Real*>(probs) + token * op.experts;
      const std::int64_t* chosen = choices + token * op.k;
      const Real divisor = op.renormalize ? sum_of_chosen(op.k, chosen, p) : Real{1};
      for (std::int64_t j = 0; j < op.k; ++j) {
        static_cast<T*>(weights)[token * op.k + j] = simd::from_double<T>(static_cast<double>(p[chosen[j]] / divisor));
      }
    });
  });
}

// With S the sum of the chosen p and w_j = p_j / S: dp_j = (dw_j - sum_i dw_i w_i) / S.
void routing_weights_backward(DType dtype, const RoutingWeights& op, const void* probs, const std::int64_t* choices,
                              const void* dweights, void* dprobs) {
  visit_float_dtype("routing_weights_backward", dtype, [&]<class T>() {
    using Real = simd::Scalar<T>;
    for_each_row(op.tokens, op.experts, [&](std::int64_t token) {
      const Real* p = static_cast<const Real*>(probs) + token * op.experts;
      const std::int64_t* chosen = choices + token * op.k;
      const T* dw = static_cast<const T*>(dweights) + token * op.k;
      Real* dp = static_cast<Real*>(dprobs) + token * op.experts;
      std::fill_n(dp, op.experts, Real{0});
      const Real divisor = op.renormalize ? sum_of_chosen(op.k, chosen, p) : Real{1};
      Real along = 0;
      for (std::int64_t j = 0; op.renormalize && j < op.k; ++j) along += to_scalar(dw[j]) * (p[chosen[j]] / divisor);
      for (std::int64_t j = 0; j < op.k; ++j) dp[chosen[j]] = (to_scalar(dw[j]) - along) / divisor;
    });
  });
}

void sort_by_expert(std::int64_t tokens, std::int64_t k, std::int64_t experts, const std::int64_t* choices,
                    std::int64_t* offsets, std::int64_t* row_slots, std::int64_t* token_rows) {
  const std::int64_t slots = tokens * k;
  std::fill_n(offsets, experts + 1, 0);
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    const std::int64_t expert = choices[slot];
    check_model(expert >= 0 && expert < experts, "sort_by_expert: token {} chose expert {} of {}; choices count from 0",
                slot / k, expert, experts);
    ++offsets[expert + 1];
  }
  for (std::int64_t e = 0; e < experts; ++e) offsets[e + 1] += offsets[e];
  std::vector<std::int64_t> next(offsets, offsets + experts);
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    row_slots[next[static_cast<std::size_t>(choices[slot])]++] = slot;
  }
  std::vector<std::int64_t> seen(static_cast<std::size_t>(tokens));
  for (std::int64_t row = 0; row < slots; ++row) {
    const std::int64_t token = row_slots[row] / k;
    token_rows[token * k + seen[static_cast<std::size_t>(token)]++] = row;
  }
}

void gather_tokens(const TokenRows& op, const void* x, const std::int64_t* row_slots, void* rows) {
  const std::size_t row_bytes = op.dim * element_bytes(op.dtype);
  for_each_row(op.tokens * op.k, op.dim, [&](std::int64_t row) {
    std::memcpy(static_cast<std::byte*>(rows) + static_cast<std::size_t>(row) * row_bytes,
                static_cast<const std::byte*>(x) + static_cast<std::size_t>(row_slots[row] / op.k) * row_bytes,
                row_bytes);
  });
}

void gather_tokens_backward(const TokenRows& op, const void* drows, const std::int64_t* token_rows, void* dx) {
  visit_float_dtype("gather_tokens_backward", op.dtype, [&]<class T>() {
    for_each_row(op.tokens, op.k * op.dim, [&](std::int64_t token) {
      sum_rows(op.k, op.dim, token_rows + token * op.k, static_cast<const T*>(drows),
               static_cast<T*>(dx) + token * op.dim, [](std::int64_t) { return simd::Scalar<T>{1}; });
    });
  });
}

void combine_tokens(const TokenRows& op, const void* rows, const void* weights, const std::int64_t* row_slots,
                    const std::int64_t* token_rows, void* y) {
  visit_float_dtype("combine_tokens", op.dtype, [&]<class T>() {
    const T* weight = static_cast<const T*>(weights);
    for_each_row(op.tokens, op.k * op.dim, [&](std::int64_t token) {
      sum_rows(op.k, op.dim, token_rows + token * op.k, static_cast<const T*>(rows),
               static_cast<T*>(y) + token * op.dim,
               [&](std::int64_t row) { return to_scalar(weight[row_slots[row]]); });
    });
  });
}

void combine_tokens_backward(const TokenRows& op, const void* rows, const void* weights, const std::int64_t* row_slots,
                             const void* dy, void* drows, void* dweights) {
  visit_float_dtype("combine_tokens_backward", op.dtype, [&]<class T>() {
    using V = simd::Pack<T>;
    for_each_row(op.tokens * op.k, op.dim, [&](std::int64_t row) {
      const std::int64_t slot = row_slots[row];
      const T* d = static_cast<const T*>(dy) + slot / op.k * op.dim;
      if (drows != nullptr) {
        const auto factor = to_scalar(static_cast<const T*>(weights)[slot]);
        T* out = static_cast<T*>(drows) + row * op.dim;
        simd::for_packs<V>(op.dim, [&](std::int64_t i, auto part) {
          simd::store(out + i, simd::load<V>(d + i, part) * factor, part);
        });
      }
      if (dweights != nullptr) {
        const T* in = static_cast<const T*>(rows) + row * op.dim;
        const auto dot = simd::sum_packs<V>(op.dim, [&](std::int64_t i, auto part) {
          return simd::load<V>(d + i, part) * simd::load<V>(in + i, part);
        });
        static_cast<T*>(dweights)[slot] = simd::from_double<T>(static_cast<double>(dot));
      }
    });
  });
}

}  // namespace loom::kernels
