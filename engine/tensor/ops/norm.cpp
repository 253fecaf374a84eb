#include "engine/kernels/dispatch.h"
#include "engine/kernels/fused.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/composed.h"
#include "engine/tensor/ops/support.h"

namespace loom::ops {

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  check_vector("rms_norm", x, weight);
  const std::int64_t rows = row_count(x);
  const std::int64_t dim = x.shape()[-1];
  Tensor y = Tensor::empty(x.shape(), x.dtype());
  Tensor rstd = Tensor::empty({rows}, accumulation_dtype(x.dtype()));
  launch("rms_norm", pass_cost(4.0 * x.numel(), {x, weight}, {y, rstd}), [&] {
    kernels::rms_norm_forward({x.dtype(), rows, dim, eps}, x.raw(), weight.raw(), y.raw(), rstd.raw());
  });
  autograd::record("rms_norm", {x, weight}, {x, weight, rstd}, {y},
                   [rows, dim](Saved saved, const Grads& grads, const Needs&) -> Grads {
                     const Tensor &x = saved[0], &weight = saved[1], &rstd = saved[2], &dy = grads[0];
                     Tensor dx = Tensor::empty(x.shape(), x.dtype());
                     Tensor dweight = Tensor::empty(weight.shape(), weight.dtype());
                     const Tensor sum = autograd::add_gradient_to(0, dx);
                     launch("rms_norm_grad", pass_cost(10.0 * x.numel(), {x, dy, weight, rstd}, {dx, dweight}), [&] {
                       kernels::rms_norm_backward(
                           {.dtype = x.dtype(), .rows = rows, .dim = dim, .add_dx_to = raw_or_null(sum)}, x.raw(),
                           weight.raw(), rstd.raw(), dy.raw(), dx.raw(), dweight.raw());
                     });
                     return {dx, dweight};
                   });
  return y;
}

namespace {

// The numbers as `dtype` holds them.
void round_to(DType dtype, const Tensor& statistics) {
  if (statistics.dtype() == dtype) return;
  kernels::visit_float_dtype("layer_norm", dtype, [&]<class T>() {
    auto* values = statistics.data<float>();
    for (std::int64_t i = 0; i < statistics.numel(); ++i) values[i] = static_cast<float>(T(values[i]));
  });
}

Tensor layer_norm_op(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, bool rounds_statistics) {
  check_vector("layer_norm", x, weight);
  check_vector("layer_norm", x, bias);
  const std::int64_t rows = row_count(x);
  const std::int64_t dim = x.shape()[-1];
  const DType stats = accumulation_dtype(x.dtype());
  Tensor y = Tensor::empty(x.shape(), x.dtype());
  Tensor mean = Tensor::empty({rows}, stats);
  Tensor rstd = Tensor::empty({rows}, stats);
  launch("layer_norm", pass_cost(7.0 * x.numel(), {x, weight, bias}, {y, mean, rstd}), [&] {
    kernels::layer_norm_forward({x.dtype(), rows, dim, eps}, x.raw(), weight.raw(), bias.raw(), y.raw(), mean.raw(),
                                rstd.raw());
    if (!rounds_statistics) return;
    round_to(x.dtype(), mean);
    round_to(x.dtype(), rstd);
  });
  autograd::record(
      "layer_norm", {x, weight, bias}, {x, weight, mean, rstd}, {y},
      [rows, dim](Saved saved, const Grads& grads, const Needs&) -> Grads {
        const Tensor &x = saved[0], &weight = saved[1], &mean = saved[2], &rstd = saved[3], &dy = grads[0];
        Tensor dx = Tensor::empty(x.shape(), x.dtype());
        Tensor dweight = Tensor::empty(weight.shape(), weight.dtype());
        Tensor dbias = Tensor::empty(weight.shape(), weight.dtype());
        const Tensor sum = autograd::add_gradient_to(0, dx);
        launch("layer_norm_grad", pass_cost(14.0 * x.numel(), {x, dy, weight, mean, rstd}, {dx, dweight, dbias}), [&] {
          kernels::layer_norm_backward({.dtype = x.dtype(), .rows = rows, .dim = dim, .add_dx_to = raw_or_null(sum)},
                                       x.raw(), weight.raw(), mean.raw(), rstd.raw(), dy.raw(),
                                       {dx.raw(), dweight.raw(), dbias.raw()});
        });
        return {dx, dweight, dbias};
      });
  return y;
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return layer_norm_op(x, weight, bias, eps, false);
}
Tensor composed::layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return layer_norm_op(x, weight, bias, eps, true);
}

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  check_same("swiglu", gate, up);
  Tensor y = Tensor::empty(gate.shape(), gate.dtype());
  launch("swiglu", pass_cost(5.0 * gate.numel(), {gate, up}, {y}),
         [&] { kernels::swiglu_forward(gate.dtype(), gate.numel(), gate.raw(), up.raw(), y.raw()); });
  autograd::record("swiglu", {gate, up}, {gate, up}, {y}, [](Saved saved, const Grads& grads, const Needs&) -> Grads {
    const Tensor &gate = saved[0], &up = saved[1], &dy = grads[0];
    Tensor dgate = Tensor::empty(gate.shape(), gate.dtype());
    Tensor dup = Tensor::empty(up.shape(), up.dtype());
    launch("swiglu_grad", pass_cost(10.0 * gate.numel(), {gate, up, dy}, {dgate, dup}), [&] {
      kernels::swiglu_backward(gate.dtype(), gate.numel(), gate.raw(), up.raw(), dy.raw(), dgate.raw(), dup.raw());
    });
    return {dgate, dup};
  });
  return y;
}

Tensor gelu(const Tensor& x, Gelu form) {
  const auto kernel_form = form == Gelu::kTanh ? kernels::GeluForm::kTanh : kernels::GeluForm::kErf;
  Tensor y = Tensor::empty(x.shape(), x.dtype());
  launch("gelu", pass_cost(10.0 * x.numel(), {x}, {y}),
         [&] { kernels::gelu_forward(x.dtype(), kernel_form, x.numel(), x.raw(), y.raw()); });
  autograd::record("gelu", {x}, {x}, {y}, [kernel_form](Saved saved, const Grads& grads, const Needs&) -> Grads {
    const Tensor &x = saved[0], &dy = grads[0];
    Tensor dx = Tensor::empty(x.shape(), x.dtype());
    launch("gelu_grad", pass_cost(20.0 * x.numel(), {x, dy}, {dx}),
           [&] { kernels::gelu_backward(x.dtype(), kernel_form, x.numel(), x.raw(), dy.raw(), dx.raw()); });
    return {dx};
  });
  return y;
}

}  // namespace loom::ops
