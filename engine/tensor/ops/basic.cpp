#include <cmath>

#include "engine/core/shape_text.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/fused.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/broadcast.h"
#include "engine/tensor/ops/general.h"
#include "engine/tensor/ops/support.h"

namespace loom::ops {

namespace {

// a + b where b's sizes are the last ones of a's.
Tensor add_same_rows(const Tensor& a, const Tensor& b) {
  Tensor y = Tensor::empty(a.shape(), a.dtype());
  launch("add", pass_cost(static_cast<double>(a.numel()), {a, b}, {y}), [&] {
    const std::int64_t part = b.numel();
    const std::int64_t step = element_bytes(a.dtype()) * part;
    for (std::int64_t i = 0; part != 0 && i < a.numel() / part; ++i) {
      kernels::add(a.dtype(), part, static_cast<const std::byte*>(a.raw()) + i * step, b.raw(),
                   static_cast<std::byte*>(y.raw()) + i * step);
    }
  });
  return y;
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) {
  check_broadcast("add", a, b);
  const bool rows = is_suffix(b.shape(), a.shape());
  Tensor y = rows ? add_same_rows(a, b) : broadcast_binary("add", kernels::BinaryOp::kAdd, a, b);
  autograd::record(
      "add", {a, b}, {}, {y},
      [rows, of_a = a.shape(), of_b = b.shape()](Saved, const Grads& grads, const Needs& needs) -> Grads {
        if (rows) return {grads[0], needs[1] ? sum_to(grads[0], of_b) : Tensor{}};
        return {needs[0] ? sum_repeated(grads[0], of_a) : Tensor{}, needs[1] ? sum_repeated(grads[0], of_b) : Tensor{}};
      });
  return y;
}

Tensor scale(const Tensor& x, double factor) {
  Tensor y = Tensor::empty(x.shape(), x.dtype());
  launch("scale", pass_cost(static_cast<double>(x.numel()), {x}, {y}),
         [&] { kernels::scale(x.dtype(), x.numel(), factor, x.raw(), y.raw()); });
  autograd::record("scale", {x}, {}, {y}, [factor](Saved, const Grads& grads, const Needs&) -> Grads {
    const autograd::NoGrad no_grad;
    return {scale(grads[0], factor)};
  });
  return y;
}

Tensor tanh(const Tensor& x) {
  Tensor y = Tensor::empty(x.shape(), x.dtype());
  launch("tanh", pass_cost(10.0 * x.numel(), {x}, {y}), [&] {
    kernels::visit_float_dtype("tanh", x.dtype(), [&]<class T>() {
      const T* from = x.data<T>();
      T* to = y.data<T>();
      using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;
      for (std::int64_t i = 0; i < x.numel(); ++i) to[i] = T(std::tanh(static_cast<Real>(from[i])));
    });
  });
  autograd::record("tanh", {x}, {y}, {y}, [](Saved saved, const Grads& grads, const Needs&) -> Grads {
    const Tensor &y = saved[0], &dy = grads[0];
    Tensor dx = Tensor::empty(y.shape(), y.dtype());
    launch("tanh_grad", pass_cost(3.0 * y.numel(), {y, dy}, {dx}), [&] {
      kernels::visit_float_dtype("tanh_grad", y.dtype(), [&]<class T>() {
        using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;
        for (std::int64_t i = 0; i < y.numel(); ++i) {
          const Real value = static_cast<Real>(y.data<T>()[i]);
          dx.data<T>()[i] = T(static_cast<Real>(dy.data<T>()[i]) * (1 - value * value));
        }
      });
    });
    return {dx};
  });
  return y;
}

Tensor cast(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Tensor y = Tensor::empty(x.shape(), dtype);
  launch("cast", pass_cost(0, {x}, {y}), [&] { kernels::cast(x.numel(), x.dtype(), x.raw(), dtype, y.raw()); });
  autograd::record("cast", {x}, {}, {y}, [from = x.dtype()](Saved, const Grads& grads, const Needs&) -> Grads {
    const autograd::NoGrad no_grad;
    return {cast(grads[0], from)};
  });
  return y;
}

Tensor reshape(const Tensor& x, const Shape& shape) {
  Tensor y = x.view(shape);
  autograd::record("reshape", {x}, {}, {y}, [shape = x.shape()](Saved, const Grads& grads, const Needs&) -> Grads {
    return {grads[0].view(shape)};
  });
  return y;
}

std::vector<Tensor> split_last(const Tensor& x, const std::vector<std::int64_t>& sizes) {
  std::int64_t total = 0;
  for (std::int64_t size : sizes) total += size;
  check_model(total == x.shape()[-1],
              "split_last: parts of {} elements from {}; the parts need the last dim as their sum", total, x.shape());
  return split(x, sizes, -1);
}

Tensor mean(const Tensor& x) {
  Tensor y = Tensor::empty({}, accumulation_dtype(x.dtype()));
  launch("mean", pass_cost(static_cast<double>(x.numel()), {x}, {y}), [&] {
    double sum = 0;
    for (double value : kernel_values(x)) sum += value;
    y.fill(sum / static_cast<double>(x.numel()));
  });
  autograd::record(
      "mean", {x}, {}, {y}, [shape = x.shape(), dtype = x.dtype()](Saved, const Grads& grads, const Needs&) {
        return Grads{Tensor::full(shape, dtype, kernel_value(grads[0]) / static_cast<double>(shape.numel()))};
      });
  return y;
}

}  // namespace loom::ops
