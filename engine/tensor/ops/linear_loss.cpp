#include "engine/tensor/ops/linear_loss.h"

#include <algorithm>
#include <utility>

#include "engine/core/shape_text.h"
#include "engine/kernels/fused.h"
#include "engine/kernels/momentum.h"
#include "engine/tensor/ops/products.h"

namespace loom::ops {
namespace {

// to = x * factor; to may be x.
void scale_into(const Tensor& x, double factor, const Tensor& to) {
  const kernels::WeightedSum op{.dtype = x.dtype(), .y_dtype = x.dtype(), .elems = x.numel(), .a = factor};
  launch("scale", pass_cost(static_cast<double>(x.numel()), {x}, {to}),
         [&] { kernels::weighted_sum(op, x.raw(), x.raw(), to.raw()); });
}

// x and targets as rows, and what has been summed up to here.
struct Chunks {
  Tensor x, weight, targets;
  const LogitsLoss& loss_of;
  Tensor dx;  // undefined: not needed
  Tensor dw;  // in fp32; undefined: not needed
  SumOfLosses losses;

  void add(std::int64_t begin, std::int64_t rows) {
    const Tensor part = x.rows(begin, rows), wanted = targets.rows(begin, rows);
    const std::int64_t vocab = weight.shape()[0], hidden = weight.shape()[1];
    const Tensor logits = Tensor::empty({rows, vocab}, x.dtype());
    multiply("linear", {.m = rows, .n = vocab, .k = hidden, .transpose_b = true}, part, weight, logits);
    const SumOfLosses found = loss_of(logits, wanted, dx.defined() || dw.defined());
    losses.sum += found.sum;
    losses.counted += found.counted;
    if (dx.defined()) {
      multiply("linear_grad_input", {.m = rows, .n = hidden, .k = vocab}, logits, weight, dx.rows(begin, rows));
    }
    if (dw.defined()) {
      multiply("linear_grad_weight", {.m = vocab, .n = hidden, .k = rows, .transpose_a = true, .accumulate = begin > 0},
               logits, part, dw);
    }
  }
};

SumOfLosses cross_entropies(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index, bool gradient) {
  const kernels::CrossEntropy op{logits.dtype(), logits.shape()[0], logits.shape()[1], targets.dtype(), ignore_index};
  const Tensor log_sum_exp = Tensor::empty({op.rows}, accumulation_dtype(op.dtype));
  const double flops = 3.0 * static_cast<double>(logits.numel());
  kernels::CrossEntropySum sum;
  launch("cross_entropy", pass_cost(flops, {logits, targets}, {log_sum_exp}),
         [&] { sum = kernels::cross_entropy_forward(op, logits.raw(), targets.raw(), log_sum_exp.raw()); });
  if (gradient) {
    launch("cross_entropy_grad", pass_cost(flops, {logits, targets}, {logits}), [&] {
      kernels::cross_entropy_backward(op, logits.raw(), targets.raw(), log_sum_exp.raw(), 1.0, logits.raw());
    });
  }
  return {sum.loss, sum.rows};
}

void check(std::string_view op, const Tensor& x, const Tensor& weight, const Tensor& targets, std::int64_t chunk) {
  Shape leading = x.shape();
  const bool fits = x.shape().ndim() >= 2 && weight.shape().ndim() == 2 && weight.shape()[1] == x.shape()[-1] &&
                    weight.dtype() == x.dtype() && targets.numel() * x.shape()[-1] == x.numel();
  check_model(
      shapes_hold(fits, op, {x, weight}),
      "{}: input {} {} with weight {} {} and targets {}; [..., S, H], [V, H] in one dtype and [..., S] are needed", op,
      name(x.dtype()), x.shape(), name(weight.dtype()), weight.shape(), targets.shape());
  check_model(chunk >= 1, "{}: chunks of {} tokens; at least 1 is needed", op, chunk);
}

Tensor finished(const Tensor& sum, DType dtype) {
  if (!sum.defined() || sum.dtype() == dtype) return sum;
  const Tensor result = Tensor::empty(sum.shape(), dtype);
  launch("cast", pass_cost(0, {sum}, {result}),
         [&] { kernels::cast(sum.numel(), sum.dtype(), sum.raw(), dtype, result.raw()); });
  return result;
}

}  // namespace

Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets, std::int64_t chunk,
                            std::int64_t ignore_index) {
  return linear_loss("linear_cross_entropy", x, weight, targets, chunk,
                     [=](const Tensor& logits, const Tensor& wanted, bool gradient) {
                       return cross_entropies(logits, wanted, ignore_index, gradient);
                     });
}

Tensor linear_loss(std::string_view name, const Tensor& x, const Tensor& weight, const Tensor& targets,
                   std::int64_t chunk, const LogitsLoss& loss_of) {
  check(name, x, weight, targets, chunk);
  const std::int64_t hidden = x.shape()[-1], rows = targets.numel();
  const std::int64_t batch = rows == 0 ? 1 : rows / x.shape()[-2];
  const Tensor inputs[] = {x, weight};
  const bool records = autograd::will_record(inputs);
  const DType wide = accumulation_dtype(x.dtype());
  Chunks chunks{.x = x.detach().view({rows, hidden}),
                .weight = weight.detach(),
                .targets = targets.view({rows}),
                .loss_of = loss_of,
                .dx = records && x.requires_grad() ? Tensor::empty({rows, hidden}, x.dtype()) : Tensor(),
                .dw = records && weight.requires_grad() ? Tensor::empty(weight.shape(), wide) : Tensor(),
                .losses = {}};
  const std::int64_t most = std::min(rows, chunk > rows / batch ? rows : chunk * batch);
  for (std::int64_t begin = 0; begin < rows; begin += most) chunks.add(begin, std::min(most, rows - begin));
  if (rows == 0 && chunks.dw.defined()) chunks.dw.fill(0);
  const double counted = std::max<double>(1, static_cast<double>(chunks.losses.counted));
  const Tensor dx = chunks.dx.defined() ? chunks.dx.view(x.shape()) : Tensor();
  const Tensor dw = finished(chunks.dw, weight.dtype());
  chunks.dw = {};
  Tensor loss = Tensor::full({}, wide, chunks.losses.sum / counted);
  autograd::record(
      name, {x, weight}, {dx, dw}, {loss}, [counted](Saved saved, const Grads& grads, const Needs& needs) -> Grads {
        const double factor = kernel_value(grads[0]) / counted;
        Grads result(2);
        for (std::size_t i = 0; i < 2; ++i) {
          if (!needs[i] || !saved[i].defined()) continue;
          result[i] = saved[i].is_owned_by(1) ? saved[i].detach() : Tensor::empty(saved[i].shape(), saved[i].dtype());
          scale_into(saved[i], factor, result[i]);
        }
        return result;
      });
  return loss;
}

}  // namespace loom::ops
