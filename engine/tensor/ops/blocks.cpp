// Element-wise blocks of the composed operators. A block keeps what PyTorch keeps: the factor of an input that needs a
// gradient.
#include "engine/tensor/ops/blocks.h"

#include "engine/core/shape_text.h"
#include "engine/kernels/rowwise.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/broadcast.h"
#include "engine/tensor/ops/composed.h"
#include "engine/tensor/ops/maps.h"

namespace loom::ops {
namespace {

Tensor product(const Tensor& a, const Tensor& b) {
  return map_elements(
      "mul", 1, [](auto u, auto v) { return u * v; }, a, b);
}

// Row r of x times row pick(r) of `table`, whose rows have `cols` elements.
template <class Pick>
Tensor times_table_rows(const Tensor& x, const Tensor& table, std::int64_t cols, Pick pick) {
  Tensor y = Tensor::empty(x.shape(), x.dtype());
  launch("mul", pass_cost(static_cast<double>(x.numel()), {x, table}, {y}), [&] {
    if (cols == 0) return;
    kernels::visit_float_dtype("mul", x.dtype(), [&]<class T>() {
      using V = kernels::simd::Pack<T>;
      const T *from = x.data<T>(), *factors = table.data<T>();
      T* to = y.data<T>();
      for_rows(x.numel() / cols, cols, [&](std::int64_t row) {
        const T *u = from + row * cols, *v = factors + pick(row) * cols;
        kernels::simd::for_packs<V>(cols, [&](std::int64_t i, auto part) {
          kernels::simd::store(to + row * cols + i,
                               kernels::simd::load<V>(u + i, part) * kernels::simd::load<V>(v + i, part), part);
        });
      });
    });
  });
  return y;
}

// x times b, whose shape is a suffix of x's.
Tensor times_suffix(const Tensor& x, const Tensor& b) {
  if (x.shape() == b.shape()) return product(x, b);
  return times_table_rows(x, b, b.numel(), [](std::int64_t) { return std::int64_t{0}; });
}

// Each row of x times its factor.
Tensor times_row_factors(const Tensor& x, const Tensor& factor) {
  Tensor y = Tensor::empty(x.shape(), x.dtype());
  launch("mul_rows", pass_cost(static_cast<double>(x.numel()), {x, factor}, {y}), [&] {
    kernels::visit_float_dtype("mul_rows", x.dtype(), [&]<class T>() {
      using V = kernels::simd::Pack<T>;
      const std::int64_t cols = x.shape()[-1];
      const T *from = x.data<T>(), *factors = factor.data<T>();
      T* to = y.data<T>();
      for_rows(row_count(x), cols, [&](std::int64_t row) {
        const V f = kernels::simd::splat<V>(kernels::simd::to_double(factors[row]));
        kernels::simd::for_packs<V>(cols, [&](std::int64_t i, auto part) {
          kernels::simd::store(to + row * cols + i, kernels::simd::load<V>(from + row * cols + i, part) * f, part);
        });
      });
    });
  });
  return y;
}

Shape without_last(const Shape& shape) {
  return Shape(std::vector<std::int64_t>(shape.sizes().begin(), shape.sizes().end() - 1));
}

Tensor sum_last(const Tensor& x, DType dtype, double factor) {
  Tensor y = Tensor::empty(without_last(x.shape()), dtype);
  launch("row_sum", pass_cost(static_cast<double>(x.numel()), {x}, {y}),
         [&] { kernels::row_sum(x.dtype(), dtype, row_count(x), x.shape()[-1], factor, x.raw(), y.raw()); });
  return y;
}

// x^2. Backward has PyTorch's intermediates: x^1 and 2 x^1 exist beside the result.
Tensor square(const Tensor& x) {
  Tensor y = map_elements(
      "square", 1, [](auto v) { return v * v; }, x);
  autograd::record("square", {x}, {x}, {y}, [](Saved saved, const Grads& grads, const Needs&) -> Grads {
    const Tensor& x = saved[0];
    const Tensor power = Tensor::empty(x.shape(), x.dtype(), device::MemCategory::kTemporary);
    const Tensor twice = map_elements(
        "square_grad", 1, [](auto v) { return 2.0f * v; }, x);
    return {product(grads[0], twice)};
  });
  return y;
}

// Mean over the last dim of a tensor in statistics dtype.
Tensor mean_last(const Tensor& x) {
  const double factor = 1.0 / static_cast<double>(x.shape()[-1]);
  Tensor y = sum_last(x, x.dtype(), factor);
  autograd::record(
      "mean_last", {x}, {}, {y}, [factor, shape = x.shape()](Saved, const Grads& grads, const Needs&) -> Grads {
        const Tensor& dy = grads[0];
        Tensor dx = Tensor::empty(shape, dy.dtype());
        launch("mean_last_grad", pass_cost(static_cast<double>(dx.numel()), {dy}, {dx}),
               [&] { kernels::row_fill(dx.dtype(), row_count(dx), shape[-1], factor, dy.raw(), dx.raw()); });
        return {dx};
      });
  return y;
}

}  // namespace

Tensor mul(const Tensor& a, const Tensor& b) {
  check_broadcast("mul", a, b);
  const bool rows = is_suffix(b.shape(), a.shape());
  const auto times = [](const Tensor& u, const Tensor& v) {
    return broadcast_binary("mul", kernels::BinaryOp::kMul, u, v);
  };
  Tensor y = rows ? times_suffix(a, b) : times(a, b);
  const Tensor none;
  autograd::record(
      "mul", {a, b}, {b.requires_grad() ? a : none, a.requires_grad() ? b : none}, {y},
      [=, of_a = a.shape(), of_b = b.shape()](Saved saved, const Grads& grads, const Needs& needs) -> Grads {
        Grads result(2);
        if (rows) {
          if (needs[0]) result[0] = times_suffix(grads[0], saved[1]);
          if (needs[1]) result[1] = sum_to(product(grads[0], saved[0]), of_b);
        } else {
          if (needs[0]) result[0] = sum_repeated(times(grads[0], saved[1]), of_a);
          if (needs[1]) result[1] = sum_repeated(times(grads[0], saved[0]), of_b);
        }
        return result;
      });
  return y;
}

Tensor mul_rows(const Tensor& x, const Tensor& factor) {
  check_model(x.shape().ndim() >= 1 && factor.shape() == without_last(x.shape()) && factor.dtype() == x.dtype(),
              "mul_rows: {} {} with factors {} {}; one factor for each row is needed, in the same dtype",
              name(x.dtype()), x.shape(), name(factor.dtype()), factor.shape());
  Tensor y = times_row_factors(x, factor);
  const Tensor none;
  autograd::record("mul_rows", {x, factor}, {factor.requires_grad() ? x : none, x.requires_grad() ? factor : none}, {y},
                   [](Saved saved, const Grads& grads, const Needs& needs) -> Grads {
                     Grads result(2);
                     if (needs[0]) result[0] = times_row_factors(grads[0], saved[1]);
                     if (needs[1]) result[1] = sum_last(product(grads[0], saved[0]), grads[0].dtype(), 1.0);
                     return result;
                   });
  return y;
}

Tensor mul_positions(const Tensor& x, const Tensor& table) {
  const std::int64_t heads = x.shape()[2], dim = x.shape()[3];
  const std::int64_t positions = table.numel() / std::max<std::int64_t>(dim, 1);  // of a row, or of the batch
  check_model(!table.requires_grad(), "mul_positions: a table that requires a gradient; detach() it");
  const auto multiply = [=](const Tensor& from, const Tensor& factors) {
    return times_table_rows(from, factors, dim, [=](std::int64_t row) { return row / heads % positions; });
  };
  Tensor y = multiply(x, table);
  autograd::record(
      "mul_positions", {x}, {table}, {y},
      [multiply](Saved saved, const Grads& grads, const Needs&) -> Grads { return {multiply(grads[0], saved[0])}; });
  return y;
}

Tensor neg(const Tensor& x) {
  const auto negative = [](const Tensor& from) {
    return map_elements(
        "neg", 1, [](auto v) { return -v; }, from);
  };
  Tensor y = negative(x);
  autograd::record("neg", {x}, {}, {y},
                   [negative](Saved, const Grads& grads, const Needs&) -> Grads { return {negative(grads[0])}; });
  return y;
}

// Backward is grad * (3 * x^2), each product rounded.
Tensor cube(const Tensor& x) {
  Tensor y = product(x, x);
  launch("cube", pass_cost(static_cast<double>(x.numel()), {x, y}, {y}), [&] {
    kernels::visit_float_dtype("cube", x.dtype(), [&]<class T>() {
      const auto times = [](auto u, auto v) { return u * v; };
      T* to = y.data<T>();
      kernels::map<kernels::simd::Pack<T>>(x.numel(), to, times, static_cast<const T*>(to),
                                           static_cast<const T*>(x.data<T>()));
    });
  });
  autograd::record("cube", {x}, {x}, {y}, [](Saved saved, const Grads& grads, const Needs&) -> Grads {
    const Tensor square = product(saved[0], saved[0]);
    const Tensor slope = map_elements(
        "cube_grad", 1, [](auto v) { return 3.0f * v; }, square);
    return {product(grads[0], slope)};
  });
  return y;
}

Tensor silu(const Tensor& x) {
  Tensor y = map_elements(
      "silu", 4, [](auto v) { return v / (1.0f + kernels::simd::exp(-v)); }, x);
  autograd::record("silu", {x}, {x}, {y}, [](Saved saved, const Grads& grads, const Needs&) -> Grads {
    const auto gradient = [](auto v, auto d) {
      const auto s = kernels::simd::sigmoid(v);
      return d * s * (1.0f + v * (1.0f - s));
    };
    return {map_elements("silu_grad", 8, gradient, saved[0], grads[0])};
  });
  return y;
}

Tensor mean_square(const Tensor& x) { return mean_last(square(cast(x, accumulation_dtype(x.dtype())))); }

Tensor rsqrt_eps(const Tensor& x, double eps) {
  Tensor y = map_elements(
      "rsqrt", 3, [eps](auto v) { return 1.0f / kernels::simd::sqrt(v + static_cast<float>(eps)); }, x);
  autograd::record("rsqrt", {x}, {y}, {y}, [](Saved saved, const Grads& grads, const Needs&) -> Grads {
    return {map_elements(
        "rsqrt_grad", 4, [](auto y, auto d) { return -0.5f * d * y * y * y; }, saved[0], grads[0])};
  });
  return y;
}

}  // namespace loom::ops
