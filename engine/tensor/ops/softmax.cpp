// Blocks of the composed operators around the softmax.
#include "engine/core/shape_text.h"
#include "engine/kernels/rowwise.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/blocks.h"
#include "engine/tensor/ops/composed.h"
#include "engine/tensor/ops/maps.h"

namespace loom::ops {
namespace {

// Where the segment of each position of all rows begins, within its row.
std::vector<std::int64_t> first_keys(const std::vector<std::int64_t>& ends, std::int64_t length) {
  std::vector<std::int64_t> first;
  for (const std::int64_t end : ends)
    first.resize(static_cast<std::size_t>(end), static_cast<std::int64_t>(first.size()) % length);
  return first;
}

// A query sees keys [first, limit) of its own; first is 0 without segments.
template <class T>
void add_mask(const Tensor& scores, Tensor& masked, std::int64_t start, const SegmentEnds& ends, double smallest) {
  using V = kernels::simd::Pack<T>;
  const std::int64_t queries = scores.shape()[-2], keys = scores.shape()[-1];
  const T* x = scores.data<T>();
  T* y = masked.data<T>();
  const std::vector<std::int64_t> first = ends ? first_keys(*ends, queries) : std::vector<std::int64_t>{};
  const std::int64_t rows_of_batch =
      first.empty() ? 1 : row_count(scores) * queries / static_cast<std::int64_t>(first.size());
  for_rows(row_count(scores), keys, [&](std::int64_t row) {
    const T* in = x + row * keys;
    T* out = y + row * keys;
    const auto mask = [&](std::int64_t begin, std::int64_t end) {
      kernels::simd::for_packs<V>(end - begin, [&](std::int64_t i, auto part) {
        kernels::simd::store(out + begin + i,
                             kernels::simd::load<V>(in + begin + i, part) + kernels::simd::splat<V>(smallest), part);
      });
    };
    const std::int64_t limit = std::min(start + row % queries + 1, keys);
    const std::int64_t seen =
        first.empty() ? 0 : first[static_cast<std::size_t>(row / rows_of_batch * queries + row % queries)];
    mask(0, seen);
    std::copy(in + seen, in + limit, out + seen);
    mask(limit, keys);
  });
}

}  // namespace

namespace {

// In `result`: x's dtype, or the dtype of statistics.
Tensor softmax_as(const Tensor& x, DType result) {
  const std::int64_t rows = row_count(x);
  const std::int64_t cols = x.shape()[-1];
  Tensor y = Tensor::empty(x.shape(), result);
  launch("softmax", pass_cost(5.0 * static_cast<double>(x.numel()), {x}, {y}),
         [&] { kernels::softmax_forward(x.dtype(), y.dtype(), rows, cols, x.raw(), y.raw()); });
  autograd::record("softmax", {x}, {y}, {y},
                   [rows, cols, dtype = x.dtype()](Saved saved, const Grads& grads, const Needs&) -> Grads {
                     const Tensor &y = saved[0], &dy = grads[0];
                     Tensor dx = Tensor::empty(y.shape(), dtype);
                     launch("softmax_grad", pass_cost(4.0 * static_cast<double>(y.numel()), {y, dy}, {dx}), [&] {
                       kernels::softmax_backward(dtype, y.dtype(), rows, cols, y.raw(), dy.raw(), dx.raw());
                     });
                     return {dx};
                   });
  return y;
}

}  // namespace

Tensor softmax_in_statistics(const Tensor& x) { return softmax_as(x, accumulation_dtype(x.dtype())); }

Tensor causal_mask(const Tensor& scores, std::int64_t start, const SegmentEnds& ends) {
  const Shape& s = scores.shape();
  check_model(s.ndim() >= 2 && start >= 0,
              "causal_mask: scores {} with the first query at position {}; [..., queries, keys] and a position of 0 or "
              "more are needed",
              s, start);
  Tensor y = Tensor::empty(s, scores.dtype());
  launch("causal_mask", pass_cost(static_cast<double>(y.numel()), {scores}, {y}), [&] {
    kernels::visit_float_dtype("causal_mask", scores.dtype(), [&]<class T>() {
      add_mask<T>(scores, y, start, ends, smallest_number(scores.dtype()));
    });
  });
  autograd::record("causal_mask", {scores}, {}, {y},
                   [](Saved, const Grads& grads, const Needs&) -> Grads { return {grads[0]}; });
  return y;
}

Tensor softmax(const Tensor& x) {
  check_model(x.shape().ndim() >= 1, "softmax: a scalar; at least one dim is needed");
  return cast(softmax_in_statistics(x), x.dtype());
}

Tensor plain_softmax(const Tensor& x) {
  check_model(x.shape().ndim() >= 1, "softmax: a scalar; at least one dim is needed");
  return softmax_as(x, x.dtype());
}

Tensor log_softmax(const Tensor& x) {
  check_model(x.shape().ndim() >= 1, "log_softmax: a scalar; at least one dim is needed");
  const std::int64_t rows = row_count(x);
  const std::int64_t cols = x.shape()[-1];
  Tensor y = Tensor::empty(x.shape(), x.dtype());
  launch("log_softmax", pass_cost(5.0 * static_cast<double>(x.numel()), {x}, {y}),
         [&] { kernels::log_softmax_forward(x.dtype(), rows, cols, x.raw(), y.raw()); });
  autograd::record("log_softmax", {x}, {y}, {y}, [rows, cols](Saved saved, const Grads& grads, const Needs&) -> Grads {
    const Tensor &y = saved[0], &dy = grads[0];
    Tensor dx = Tensor::empty(y.shape(), y.dtype());
    launch("log_softmax_grad", pass_cost(4.0 * static_cast<double>(y.numel()), {y, dy}, {dx}),
           [&] { kernels::log_softmax_backward(y.dtype(), rows, cols, y.raw(), dy.raw(), dx.raw()); });
    return {dx};
  });
  return y;
}

Tensor log_sum_exp(const Tensor& x) {
  check_model(x.shape().ndim() >= 1 && x.shape()[-1] >= 1,
              "log_sum_exp: {}; a last dim of at least one element is needed", x.shape());
  const Shape rows(std::vector<std::int64_t>(x.shape().sizes().begin(), x.shape().sizes().end() - 1));
  Tensor y = Tensor::empty(rows, accumulation_dtype(x.dtype()));
  launch("log_sum_exp", pass_cost(3.0 * static_cast<double>(x.numel()), {x}, {y}),
         [&] { kernels::log_sum_exp_forward(x.dtype(), row_count(x), x.shape()[-1], x.raw(), y.raw()); });
  autograd::record("log_sum_exp", {x}, {x, y}, {y}, [](Saved saved, const Grads& grads, const Needs&) -> Grads {
    const Tensor &x = saved[0], &y = saved[1], &dy = grads[0];
    Tensor dx = Tensor::empty(x.shape(), x.dtype());
    launch("log_sum_exp_grad", pass_cost(3.0 * static_cast<double>(x.numel()), {x, y, dy}, {dx}), [&] {
      kernels::log_sum_exp_backward(x.dtype(), row_count(x), x.shape()[-1], x.raw(), y.raw(), dy.raw(), dx.raw());
    });
    return {dx};
  });
  return y;
}

Tensor nll_loss(const Tensor& log_probs, const Tensor& targets, std::int64_t ignore_index) {
  check_targets("nll_loss", log_probs, targets);
  const std::int64_t rows = row_count(log_probs);
  const std::int64_t cols = log_probs.shape()[-1];
  kernels::CrossEntropySum sum;
  launch("nll_loss", pass_cost(static_cast<double>(rows), {targets}, {}), [&] {
    sum = kernels::nll_forward({log_probs.dtype(), rows, cols, targets.dtype(), ignore_index}, log_probs.raw(),
                               targets.raw());
  });
  Tensor loss = Tensor::full({}, accumulation_dtype(log_probs.dtype()),
                             sum.rows == 0 ? 0.0 : sum.loss / static_cast<double>(sum.rows));
  autograd::record(
      "nll_loss", {log_probs}, {log_probs, targets}, {loss},
      [rows, cols, ignore_index, counted = sum.rows](Saved saved, const Grads& grads, const Needs&) -> Grads {
        const Tensor &log_probs = saved[0], &targets = saved[1];
        Tensor dx = Tensor::empty(log_probs.shape(), log_probs.dtype());
        launch("nll_loss_grad", pass_cost(0, {targets}, {dx}), [&] {
          const double row_scale = counted == 0 ? 0.0 : kernel_value(grads[0]) / static_cast<double>(counted);
          kernels::nll_backward({dx.dtype(), rows, cols, targets.dtype(), ignore_index}, targets.raw(), row_scale,
                                dx.raw());
        });
        return {dx};
      });
  return loss;
}

}  // namespace loom::ops
