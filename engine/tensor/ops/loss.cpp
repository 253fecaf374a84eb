#include <cstddef>

#include "engine/core/shape_text.h"
#include "engine/kernels/fused.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/support.h"

namespace loom::ops {

Tensor cross_entropy(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index) {
  check_targets("cross_entropy", logits, targets);
  const std::int64_t rows = row_count(logits);
  const std::int64_t vocab = logits.shape()[-1];
  const DType stats = accumulation_dtype(logits.dtype());
  Tensor log_sum_exp = Tensor::empty({rows}, stats);
  kernels::CrossEntropySum sum;
  launch("cross_entropy", pass_cost(3.0 * logits.numel(), {logits, targets}, {log_sum_exp}), [&] {
    sum = kernels::cross_entropy_forward({logits.dtype(), rows, vocab, targets.dtype(), ignore_index}, logits.raw(),
                                         targets.raw(), log_sum_exp.raw());
  });
  Tensor loss = Tensor::full({}, stats, sum.rows == 0 ? 0.0 : sum.loss / static_cast<double>(sum.rows));
  autograd::record(
      "cross_entropy", {logits}, {logits, targets, log_sum_exp}, {loss},
      [rows, vocab, ignore_index, counted = sum.rows](Saved saved, const Grads& grads, const Needs&) -> Grads {
        const Tensor &logits = saved[0], &targets = saved[1], &lse = saved[2];
        // The saved tensor is the only owner of the logits' bytes, which are no longer needed.
        const bool reuse = logits.is_owned_by(1);
        Tensor dlogits = reuse ? logits.detach() : Tensor::empty(logits.shape(), logits.dtype());
        launch("cross_entropy_grad", pass_cost(3.0 * logits.numel(), {logits, targets, lse}, {dlogits}), [&] {
          const double row_scale = counted == 0 ? 0.0 : kernel_value(grads[0]) / static_cast<double>(counted);
          kernels::cross_entropy_backward({logits.dtype(), rows, vocab, targets.dtype(), ignore_index}, logits.raw(),
                                          targets.raw(), lse.raw(), row_scale, dlogits.raw());
        });
        return {dlogits};
      });
  return loss;
}

namespace {

// Row r of [R,S,...].
const void* row_of(const Tensor& tensor, std::int64_t row) {
  return static_cast<const std::byte*>(tensor.raw()) + row * (tensor.nbytes() / tensor.shape()[0]);
}
void* row_of(Tensor& tensor, std::int64_t row) {
  return static_cast<std::byte*>(tensor.raw()) + row * (tensor.nbytes() / tensor.shape()[0]);
}

Tensor log_probs_gradient(const kernels::CrossEntropy& op, const Tensor& logits, const Tensor& targets,
                          const Tensor& log_sum_exp, const Tensor& gradient) {
  const bool reuse = logits.is_owned_by(1);
  Tensor dlogits = reuse ? logits.detach() : Tensor::empty(logits.shape(), logits.dtype());
  launch("sequence_log_probs_grad", pass_cost(3.0 * logits.numel(), {logits, targets, log_sum_exp}, {dlogits}), [&] {
    const std::vector<double> scales = gradient.to_vector<double>();
    for (std::int64_t row = 0; row < targets.shape()[0]; ++row) {
      kernels::cross_entropy_backward(op, row_of(logits, row), row_of(targets, row), row_of(log_sum_exp, row),
                                      -scales[static_cast<std::size_t>(row)], row_of(dlogits, row));
    }
  });
  return dlogits;
}

}  // namespace

Tensor sequence_log_probs(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index) {
  const Shape& s = logits.shape();
  check_model(s.ndim() == 3 && targets.shape() == Shape{s[0], s[1]},
              "sequence_log_probs: logits {} with targets {}; logits are [rows, sequence, vocabulary], targets [rows, "
              "sequence]",
              s, targets.shape());
  const DType stats = accumulation_dtype(logits.dtype());
  const kernels::CrossEntropy op{logits.dtype(), s[1], s[2], targets.dtype(), ignore_index};
  Tensor log_sum_exp = Tensor::empty({s[0], s[1]}, stats);
  std::vector<double> sums(static_cast<std::size_t>(s[0]));
  launch("sequence_log_probs", pass_cost(3.0 * logits.numel(), {logits, targets}, {log_sum_exp}), [&] {
    for (std::int64_t row = 0; row < s[0]; ++row) {
      const auto found =
          kernels::cross_entropy_forward(op, row_of(logits, row), row_of(targets, row), row_of(log_sum_exp, row));
      sums[static_cast<std::size_t>(row)] = -found.loss;
    }
  });
  Tensor log_probs = Tensor::from(sums, {s[0]}, stats);
  autograd::record("sequence_log_probs", {logits}, {logits, targets, log_sum_exp}, {log_probs},
                   [op](Saved saved, const Grads& grads, const Needs&) -> Grads {
                     return {log_probs_gradient(op, saved[0], saved[1], saved[2], grads[0])};
                   });
  return log_probs;
}

}  // namespace loom::ops
