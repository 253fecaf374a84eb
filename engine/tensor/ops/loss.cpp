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
        // The only tensor on the logits' bytes is the one that was saved: they are not needed any more.
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

}  // namespace loom::ops
