#include "engine/tensor/ops/support.h"

#include "engine/kernels/fused.h"

namespace loom::ops {

void check_vector(std::string_view op, const Tensor& x, const Tensor& v) {
  const bool holds = x.shape().ndim() >= 1 && v.shape() == Shape{x.shape()[-1]} && v.dtype() == x.dtype();
  require(shapes_hold(holds, op, {x, v}), "{}: {} {} with weight {} {}", op, name(x.dtype()), to_string(x.shape()),
          name(v.dtype()), to_string(v.shape()));
}

void check_rope(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const Shape& s = x.shape();
  require(s.ndim() == 4 && s[3] % 2 == 0 && cos.shape() == Shape{s[1], s[3]} && sin.shape() == cos.shape() &&
              sin.dtype() == cos.dtype(),
          "rope: x {} with tables {} and {}", to_string(s), to_string(cos.shape()), to_string(sin.shape()));
}

void check_attention(const Tensor& q, const Tensor& k, const Tensor& v) {
  const Shape& s = q.shape();
  require(s.ndim() == 4 && k.shape().ndim() == 4 && k.shape() == v.shape() && k.shape()[0] == s[0] &&
              k.shape()[1] == s[1] && k.shape()[3] == s[3] && k.shape()[2] != 0 && s[2] % k.shape()[2] == 0 &&
              k.dtype() == q.dtype() && v.dtype() == q.dtype(),
          "attention: q {} with k {} and v {}", to_string(s), to_string(k.shape()), to_string(v.shape()));
}

void check_targets(std::string_view op, const Tensor& logits, const Tensor& targets) {
  require(logits.shape().ndim() >= 1 && targets.numel() == row_count(logits), "{}: logits {} with targets {}", op,
          to_string(logits.shape()), to_string(targets.shape()));
}

bool is_suffix(const Shape& suffix, const Shape& shape) {
  if (suffix.ndim() > shape.ndim()) return false;
  for (int d = 1; d <= suffix.ndim(); ++d) {
    if (suffix[-d] != shape[-d]) return false;
  }
  return true;
}

Tensor sum_to(const Tensor& grad, const Shape& shape) {
  if (grad.shape() == shape) return grad;
  Tensor sum = Tensor::empty(shape, grad.dtype());
  const std::int64_t cols = shape.numel();
  if (cols == 0) return sum;
  launch("sum_rows", pass_cost(static_cast<double>(grad.numel()), {grad}, {sum}),
         [&] { kernels::column_sum(grad.dtype(), grad.numel() / cols, cols, grad.raw(), sum.raw()); });
  return sum;
}

std::vector<double> kernel_values(const Tensor& x) {
  std::vector<double> values(static_cast<std::size_t>(x.numel()));
  if (const void* bytes = x.raw()) kernels::cast(x.numel(), x.dtype(), bytes, DType::kF64, values.data());
  return values;
}

}  // namespace loom::ops
