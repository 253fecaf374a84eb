#include "engine/kernels/routing.h"

#include <algorithm>
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

// out = the sum of rows positions[0 .. k) up to the first -1, row j times factor(position j).
template <class T, class Factor>
void sum_rows(std::int64_t k, std::int64_t dim, const std::int64_t* positions, const T* rows, T* out, Factor factor) {
  using V = simd::Pack<T>;
  simd::for_packs<V>(dim, [&](std::int64_t i, auto part) {
    V total{};
    for (std::int64_t j = 0; j < k && positions[j] >= 0; ++j) {
      total += simd::load<V>(rows + positions[j] * dim + i, part) * factor(positions[j]);
    }
    simd::store(out + i, total, part);
  });
}

template <class T>
simd::Scalar<T> to_scalar(T value) {
  return static_cast<simd::Scalar<T>>(simd::to_double(value));
}

// Chooses the experts of one token after another.
template <class Real>
class Chooser {
 public:
  explicit Chooser(const ExpertChoice& op)
      : op_(op), order_(static_cast<std::size_t>(op.experts)), biased_(order_.size()), groups_(op.groups) {}

  void choose(const Real* scores, const Real* bias, std::int64_t* choices) {
    if (bias != nullptr) {
      for (std::size_t e = 0; e < biased_.size(); ++e) biased_[e] = scores[e] + bias[e];
      scores = biased_.data();
    }
    if (op_.groups > 1) {
      keep_best_groups(scores);
    } else {
      std::iota(order_.begin(), order_.end(), 0);
    }
    take(scores, op_.k);
    std::copy_n(order_.begin(), op_.k, choices);
  }

 private:
  void take(const Real* scores, std::int64_t count) {
    std::partial_sort(order_.begin(), order_.begin() + count, order_.end(),
                      [scores](std::int64_t a, std::int64_t b) { return comes_before(scores, a, b); });
  }

  Real score_of_group(const Real* scores) const {
    std::vector<Real> best(scores, scores + op_.experts / op_.groups);
    std::partial_sort(best.begin(), best.begin() + op_.best_in_group, best.end(),
                      [](Real a, Real b) { return (std::isnan(a) && !std::isnan(b)) || a > b; });
    return std::accumulate(best.begin(), best.begin() + op_.best_in_group, Real{0});
  }

  // order_ = the experts of the best groups.
  void keep_best_groups(const Real* scores) {
    const std::int64_t size = op_.experts / op_.groups;
    for (std::int64_t g = 0; g < op_.groups; ++g)
      groups_[static_cast<std::size_t>(g)] = score_of_group(scores + g * size);
    order_.resize(static_cast<std::size_t>(op_.groups));
    std::iota(order_.begin(), order_.end(), 0);
    take(groups_.data(), op_.best_groups);
    const std::vector<std::int64_t> best(order_.begin(), order_.begin() + op_.best_groups);
    order_.resize(static_cast<std::size_t>(op_.best_groups * size));
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      order_[i] = best[static_cast<std::size_t>(at / size)] * size + at % size;
    }
  }

  const ExpertChoice op_;
  std::vector<std::int64_t> order_;
  std::vector<Real> biased_;
  std::vector<Real> groups_;
};

// What the chosen scores are divided by, and the largest of them.
template <class Real>
struct Chosen {
  Real sum = 0;
  Real largest = 0;

  Chosen(const RoutingWeights& op, const std::int64_t* choices, const Real* scores) : largest(scores[choices[0]]) {
    for (std::int64_t j = 1; j < op.k; ++j) largest = std::max(largest, scores[choices[j]]);
    for (std::int64_t j = 0; j < op.k; ++j) sum += part(op, scores[choices[j]]);
    if (op.norm == WeightNorm::kSum) sum += Real{1e-20};
    if (op.norm == WeightNorm::kNone) sum = 1;
  }

  Real part(const RoutingWeights& op, Real score) const {
    return op.norm == WeightNorm::kSoftmax ? std::exp(score - largest) : score;
  }
  // The weight before it is scaled.
  Real weight(const RoutingWeights& op, Real score) const { return part(op, score) / sum; }
};

}  // namespace

void choose_experts(DType dtype, const ExpertChoice& op, const void* scores, const void* bias, std::int64_t* choices) {
  visit_float_dtype("choose_experts", dtype, [&]<class T>() {
    using Real = simd::Scalar<T>;
    for_pieces(op.tokens, rows_of_tile(op.experts), [&](std::int64_t begin, std::int64_t count) {
      Chooser<Real> chooser(op);
      for (std::int64_t token = begin; token < begin + count; ++token) {
        chooser.choose(static_cast<const Real*>(scores) + token * op.experts, static_cast<const Real*>(bias),
                       choices + token * op.k);
      }
    });
  });
}

void routing_weights_forward(DType dtype, const RoutingWeights& op, const void* scores, const std::int64_t* choices,
                             void* weights) {
  visit_float_dtype("routing_weights_forward", dtype, [&]<class T>() {
    using Real = simd::Scalar<T>;
    for_each_row(op.tokens, op.k, [&](std::int64_t token) {
      const Real* p = static_cast<const Real*>(scores) + token * op.experts;
      const std::int64_t* at = choices + token * op.k;
      const Chosen<Real> chosen(op, at, p);
      for (std::int64_t j = 0; j < op.k; ++j) {
        const Real weight = chosen.weight(op, p[at[j]]) * static_cast<Real>(op.scale);
        static_cast<T*>(weights)[token * op.k + j] = simd::from_double<T>(static_cast<double>(weight));
      }
    });
  });
}

// With w_j before scaling, g_j = scale dw_j and S their divisor: dp_j = (g_j - sum_i g_i w_i) / S for the sum,
// w_j (g_j - sum_i g_i w_i) for the softmax.
void routing_weights_backward(DType dtype, const RoutingWeights& op, const void* scores, const std::int64_t* choices,
                              const void* dweights, void* dscores) {
  visit_float_dtype("routing_weights_backward", dtype, [&]<class T>() {
    using Real = simd::Scalar<T>;
    for_each_row(op.tokens, op.experts, [&](std::int64_t token) {
      const Real* p = static_cast<const Real*>(scores) + token * op.experts;
      const std::int64_t* at = choices + token * op.k;
      const T* dw = static_cast<const T*>(dweights) + token * op.k;
      Real* dp = static_cast<Real*>(dscores) + token * op.experts;
      std::fill_n(dp, op.experts, Real{0});
      const Chosen<Real> chosen(op, at, p);
      const auto gradient = [&](std::int64_t j) { return to_scalar(dw[j]) * static_cast<Real>(op.scale); };
      Real along = 0;
      for (std::int64_t j = 0; op.norm != WeightNorm::kNone && j < op.k; ++j) {
        along += gradient(j) * chosen.weight(op, p[at[j]]);
      }
      for (std::int64_t j = 0; j < op.k; ++j) {
        const Real rest = gradient(j) - along;
        dp[at[j]] = op.norm == WeightNorm::kSoftmax ? rest * chosen.weight(op, p[at[j]]) : rest / chosen.sum;
      }
    });
  });
}

void count_choices(std::int64_t tokens, std::int64_t k, std::int64_t experts, const std::int64_t* choices,
                   const std::int32_t* counted, std::int64_t* counts) {
  std::fill_n(counts, experts, 0);
  for (std::int64_t slot = 0; slot < tokens * k; ++slot) {
    if (choices[slot] >= 0 && (counted == nullptr || counted[slot / k] != 0)) ++counts[choices[slot]];
  }
}

void drop_beyond_capacity(DType dtype, const CapacityLimit& op, const std::int64_t* choices, const void* weights,
                          std::int64_t* kept) {
  std::vector<std::vector<std::int64_t>> slots(static_cast<std::size_t>(op.experts));
  for (std::int64_t slot = 0; slot < op.tokens * op.k; ++slot) {
    kept[slot] = choices[slot];
    if (choices[slot] >= 0) slots[static_cast<std::size_t>(choices[slot])].push_back(slot);
  }
  visit_float_dtype("drop_beyond_capacity", dtype, [&]<class T>() {
    const auto before = [w = static_cast<const T*>(weights)](std::int64_t a, std::int64_t b) {
      return simd::to_double(w[a]) > simd::to_double(w[b]);
    };
    for (std::vector<std::int64_t>& of_expert : slots) {
      if (std::ssize(of_expert) <= op.capacity) continue;
      if (op.by_probability) std::ranges::stable_sort(of_expert, before);
      for (std::size_t i = static_cast<std::size_t>(op.capacity); i < of_expert.size(); ++i) kept[of_expert[i]] = -1;
    }
  });
}

void sort_by_expert(const ExpertOrder& op, const std::int64_t* choices, std::int64_t* offsets, std::int64_t* row_slots,
                    std::int64_t* token_rows) {
  const std::int64_t slots = op.tokens * op.k;
  std::fill_n(offsets, op.experts + 1, 0);
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    const std::int64_t expert = choices[slot];
    check_model(expert >= -1 && expert < op.experts,
                "sort_by_expert: token {} chose expert {} of {}; choices count from 0", slot / op.k, expert,
                op.experts);
    if (expert >= 0) ++offsets[expert + 1];
  }
  for (std::int64_t e = 0; e < op.experts; ++e) {
    require(op.padded == 0 || offsets[e + 1] <= op.padded, "sort_by_expert: expert {} has {} tokens, and {} rows", e,
            offsets[e + 1], op.padded);
    offsets[e + 1] = offsets[e] + (op.padded > 0 ? op.padded : offsets[e + 1]);
  }
  require(offsets[op.experts] <= op.rows, "sort_by_expert: {} rows for {}", op.rows, offsets[op.experts]);
  std::vector<std::int64_t> next(offsets, offsets + op.experts);
  std::fill_n(row_slots, op.rows, -1);
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    if (choices[slot] >= 0) row_slots[next[static_cast<std::size_t>(choices[slot])]++] = slot;
  }
  std::vector<std::int64_t> seen(static_cast<std::size_t>(op.tokens));
  std::fill_n(token_rows, slots, -1);
  for (std::int64_t row = 0; row < op.rows; ++row) {
    if (row_slots[row] < 0) continue;
    const std::int64_t token = row_slots[row] / op.k;
    token_rows[token * op.k + seen[static_cast<std::size_t>(token)]++] = row;
  }
}

void gather_tokens(const TokenRows& op, const void* x, const std::int64_t* row_slots, void* rows) {
  const std::size_t row_bytes = op.dim * element_bytes(op.dtype);
  for_each_row(op.rows, op.dim, [&](std::int64_t row) {
    std::byte* out = static_cast<std::byte*>(rows) + static_cast<std::size_t>(row) * row_bytes;
    if (row_slots[row] < 0) {
      std::memset(out, 0, row_bytes);
      return;
    }
    std::memcpy(out, static_cast<const std::byte*>(x) + static_cast<std::size_t>(row_slots[row] / op.k) * row_bytes,
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
    if (dweights != nullptr) std::fill_n(static_cast<T*>(dweights), op.tokens * op.k, T{});
    for_each_row(op.rows, op.dim, [&](std::int64_t row) {
      const std::int64_t slot = row_slots[row];
      if (slot < 0) {
        if (drows != nullptr) std::fill_n(static_cast<T*>(drows) + row * op.dim, op.dim, T{});
        return;
      }
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
