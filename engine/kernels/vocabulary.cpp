#include "engine/kernels/vocabulary.h"

#include <algorithm>
#include <vector>

#include "engine/kernels/dispatch.h"
#include "engine/kernels/log_sum_exp.h"
#include "engine/kernels/tiles.h"

namespace loom::kernels {
namespace {

// Rows of a pass over statistics alone; the ranks have different numbers of columns.
constexpr std::int64_t kTileRows = 4096;

// The columns that are not padding.
std::int64_t words_of(const VocabularyPart& op) { return std::clamp<std::int64_t>(op.vocab - op.first, 0, op.cols); }

// The target's column, or -1 where another rank has it.
template <class I>
std::int64_t column_of(const VocabularyPart& op, I target) {
  const std::int64_t column = static_cast<std::int64_t>(target) - op.first;
  return column >= 0 && column < words_of(op) ? column : -1;
}

template <class S>
struct Statistics {
  S* largest;
  S* sum;
  S* target_logit;

  void put(std::int64_t row, double top, double total, double logit) const {
    largest[row] = static_cast<S>(top);
    sum[row] = static_cast<S>(total);
    target_logit[row] = static_cast<S>(logit);
  }
};

template <class T, class I>
void statistics(const VocabularyPart& op, const T* logits, const I* targets, const Statistics<simd::Scalar<T>>& out) {
  check_targets(op.rows, op.vocab, targets, op.ignore_index);
  const std::int64_t words = words_of(op);
  for_pieces(op.rows, rows_of_tile(op.cols), [&](std::int64_t begin, std::int64_t count) {
    for (std::int64_t row = begin; row < begin + count; ++row) {
      if (targets[row] == op.ignore_index) {
        out.put(row, 0, 0, 0);
        continue;
      }
      const T* x = logits + row * op.cols;
      const MaxAndSum found = max_and_sum_of(words, x);
      const std::int64_t target = column_of(op, targets[row]);
      out.put(row, found.top, found.sum, target < 0 ? 0.0 : simd::to_double(x[target]));
    }
  });
}

template <class S>
void rescale(std::int64_t rows, const S* own_largest, const S* largest, S* sum) {
  for_pieces(rows, kTileRows, [&](std::int64_t begin, std::int64_t count) {
    for (std::int64_t row = begin; row < begin + count; ++row) {
      if (sum[row] == 0) continue;  // -inf less -inf is no number
      const double shift = static_cast<double>(own_largest[row]) - static_cast<double>(largest[row]);
      sum[row] = static_cast<S>(static_cast<double>(sum[row]) * std::exp(shift));
    }
  });
}

template <class S, class I>
CrossEntropySum loss(const VocabularyPart& op, const I* targets, const S* largest, const S* sum,
                     const S* target_logit) {
  std::vector<CrossEntropySum> partials(static_cast<std::size_t>(ceil_div(op.rows, kTileRows)));
  for_pieces(op.rows, kTileRows, [&](std::int64_t begin, std::int64_t count) {
    CrossEntropySum partial;
    for (std::int64_t row = begin; row < begin + count; ++row) {
      if (targets[row] == op.ignore_index) continue;
      const double below = static_cast<double>(largest[row]) - static_cast<double>(target_logit[row]);
      partial.loss += below + std::log(static_cast<double>(sum[row]));
      partial.rows += 1;
    }
    partials[static_cast<std::size_t>(begin / kTileRows)] = partial;
  });
  return sum_of(partials);
}

// The gradient of `words` columns; `target` is one of them, or -1.
template <class T, class Put>
void gradient_row(std::int64_t words, const T* x, std::int64_t target, simd::Scalar<T> largest, simd::Scalar<T> sum,
                  simd::Scalar<T> row_scale, T* dx, Put put) {
  using V = simd::Pack<T>;
  using S = simd::Scalar<T>;
  const V at_target = simd::splat<V>(target < 0 ? 0.0 : simd::to_double(x[target]));
  const S factor = row_scale / sum;
  simd::put_packs<V>(words, dx, put, [=](std::int64_t i, auto part) {
    simd::prefetch_ahead(x + i);
    return simd::exp_to<T>(simd::load<V>(x + i, part) - largest) * factor;
  });
  put.finish();
  if (target < 0) return;
  simd::store(dx + target, (simd::exp(at_target - largest) / sum - S{1}) * row_scale, simd::Part{1});
}

template <class T, class I>
void gradient(const VocabularyPart& op, const T* logits, const I* targets, const simd::Scalar<T>* largest,
              const simd::Scalar<T>* sum, double row_scale, T* dlogits) {
  using S = simd::Scalar<T>;
  const std::int64_t words = words_of(op);
  const bool streaming =
      logits != dlogits && simd::streams(dlogits, op.rows, op.cols * static_cast<std::int64_t>(sizeof(T)));
  simd::with_store(streaming, [&](auto put) {
    for_pieces(op.rows, rows_of_tile(op.cols), [&](std::int64_t begin, std::int64_t count) {
      for (std::int64_t row = begin; row < begin + count; ++row) {
        const bool counts = targets[row] != op.ignore_index;
        T* const dx = dlogits + row * op.cols;
        if (counts) {
          gradient_row(words, logits + row * op.cols, column_of(op, targets[row]), largest[row], sum[row],
                       static_cast<S>(row_scale), dx, put);
        }
        std::fill(dx + (counts ? words : 0), dx + op.cols, T{});
      }
    });
  });
}

// Calls body<T, I>() with the element types of logits and targets.
template <class Body>
decltype(auto) visit(std::string_view kernel, const VocabularyPart& op, Body&& body) {
  return visit_float_dtype(kernel, op.dtype, [&]<class T>() {
    return visit_index_dtype(kernel, op.target_dtype, [&]<class I>() { return body.template operator()<T, I>(); });
  });
}

}  // namespace

void vocabulary_statistics(const VocabularyPart& op, const void* logits, const void* targets, void* largest, void* sum,
                           void* target_logit) {
  visit("vocabulary_statistics", op, [&]<class T, class I>() {
    using S = simd::Scalar<T>;
    statistics(op, static_cast<const T*>(logits), static_cast<const I*>(targets),
               {static_cast<S*>(largest), static_cast<S*>(sum), static_cast<S*>(target_logit)});
  });
}

void vocabulary_rescale(const VocabularyPart& op, const void* own_largest, const void* largest, void* sum) {
  visit_float_dtype("vocabulary_rescale", op.dtype, [&]<class T>() {
    using S = simd::Scalar<T>;
    rescale(op.rows, static_cast<const S*>(own_largest), static_cast<const S*>(largest), static_cast<S*>(sum));
  });
}

CrossEntropySum vocabulary_loss(const VocabularyPart& op, const void* targets, const void* largest, const void* sum,
                                const void* target_logit) {
  return visit("vocabulary_loss", op, [&]<class T, class I>() {
    using S = simd::Scalar<T>;
    return loss(op, static_cast<const I*>(targets), static_cast<const S*>(largest), static_cast<const S*>(sum),
                static_cast<const S*>(target_logit));
  });
}

void vocabulary_gradient(const VocabularyPart& op, const void* logits, const void* targets, const void* largest,
                         const void* sum, double row_scale, void* dlogits) {
  visit("vocabulary_gradient", op, [&]<class T, class I>() {
    using S = simd::Scalar<T>;
    gradient(op, static_cast<const T*>(logits), static_cast<const I*>(targets), static_cast<const S*>(largest),
             static_cast<const S*>(sum), row_scale, static_cast<T*>(dlogits));
  });
}

}  // namespace loom::kernels
