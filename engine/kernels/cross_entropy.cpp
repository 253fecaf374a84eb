#include <vector>

#include "engine/kernels/dispatch.h"
#include "engine/kernels/fused.h"
#include "engine/kernels/log_sum_exp.h"
#include "engine/kernels/tiles.h"

namespace loom::kernels {
namespace {

template <class T, class I>
CrossEntropySum forward(const CrossEntropy& op, const T* logits, const I* targets, simd::Scalar<T>* log_sum_exp) {
  const std::int64_t rows = op.rows, vocab = op.vocab, ignore_index = op.ignore_index;
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
  return sum_of(partials);
}

template <class T, class Put>
void backward_row(std::int64_t vocab, const T* x, std::int64_t target, simd::Scalar<T> log_sum_exp,
                  simd::Scalar<T> row_scale, T* dx, Put put) {
  using V = simd::Pack<T>;
  using S = simd::Scalar<T>;
  const V at_target = simd::splat<V>(simd::to_double(x[target]));
  simd::put_packs<V>(vocab, dx, put, [=](std::int64_t i, auto part) {
    simd::prefetch_ahead(x + i);
    return simd::exp_to<T>(simd::load<V>(x + i, part) - log_sum_exp) * row_scale;
  });
  put.finish();
  simd::store(dx + target, (simd::exp(at_target - log_sum_exp) - S{1}) * row_scale, simd::Part{1});
}

template <class T, class I>
void backward(const CrossEntropy& op, const T* logits, const I* targets, const simd::Scalar<T>* log_sum_exp,
              double row_scale, T* dlogits) {
  using S = simd::Scalar<T>;
  const std::int64_t rows = op.rows, vocab = op.vocab, ignore_index = op.ignore_index;
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

CrossEntropySum cross_entropy_forward(const CrossEntropy& op, const void* logits, const void* targets,
                                      void* log_sum_exp) {
  return visit_float_dtype("cross_entropy_forward", op.dtype, [&]<class T>() {
    return visit_index_dtype("cross_entropy_forward", op.target_dtype, [&]<class I>() {
      return forward<T, I>(op, static_cast<const T*>(logits), static_cast<const I*>(targets),
                           static_cast<simd::Scalar<T>*>(log_sum_exp));
    });
  });
}

void cross_entropy_backward(const CrossEntropy& op, const void* logits, const void* targets, const void* log_sum_exp,
                            double row_scale, void* dlogits) {
  visit_float_dtype("cross_entropy_backward", op.dtype, [&]<class T>() {
    visit_index_dtype("cross_entropy_backward", op.target_dtype, [&]<class I>() {
      backward<T, I>(op, static_cast<const T*>(logits), static_cast<const I*>(targets),
                     static_cast<const simd::Scalar<T>*>(log_sum_exp), row_scale, static_cast<T*>(dlogits));
    });
  });
}

}  // namespace loom::kernels
