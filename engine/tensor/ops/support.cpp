#include "engine/tensor/ops/support.h"

#include <limits>

#include "engine/core/shape_text.h"
#include "engine/kernels/fused.h"
#include "engine/tensor/ops/blocks.h"

namespace loom::ops {

void check_vector(std::string_view op, const Tensor& x, const Tensor& v) {
  const bool holds = x.shape().ndim() >= 1 && v.shape() == Shape{x.shape()[-1]} && v.dtype() == x.dtype();
  check_model(shapes_hold(holds, op, {x, v}),
              "{}: {} {} with weight {} {}; the weight needs one element for each of the last dim, in the same dtype",
              op, name(x.dtype()), x.shape(), name(v.dtype()), v.shape());
}

void check_rope(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const Shape& s = x.shape();
  const auto fits = [&] { return cos.shape() == Shape{s[1], s[3]} || cos.shape() == Shape{s[0], s[1], s[3]}; };
  check_model(s.ndim() == 4 && s[3] % 2 == 0 && fits() && sin.shape() == cos.shape() && sin.dtype() == cos.dtype(),
              "rope: x {} with tables {} and {}; x is [batch, sequence, heads, head dim] with an even head dim, a "
              "table [sequence, head dim] or [batch, sequence, head dim]",
              s, cos.shape(), sin.shape());
}

std::int64_t check_attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                             std::optional<std::int64_t> start) {
  const Shape& s = q.shape();
  check_model(
      s.ndim() == 4 && k.shape().ndim() == 4 && k.shape() == v.shape() && k.shape()[0] == s[0] &&
          k.shape()[3] == s[3] && k.shape()[2] != 0 && s[2] % k.shape()[2] == 0 && k.dtype() == q.dtype() &&
          v.dtype() == q.dtype(),
      "attention: q {} {} with k {} {} and v {} {}; q is [batch, queries, heads, head dim], k and v are [batch, "
      "keys, key/value heads, head dim] with a divisor of the heads, in one dtype",
      name(q.dtype()), s, name(k.dtype()), k.shape(), name(v.dtype()), v.shape());
  const std::int64_t queries = s[1], keys = k.shape()[1];
  check_model(queries == 0 || keys > 0, "attention: {} queries without a key; give k and v at least one position",
              queries);
  if (!causal) return 0;
  check_model(!start || *start >= 0, "attention: the first query is at position {}, allowed are 0 and more",
              start.value_or(0));
  check_model(
      start || queries <= keys,
      "attention: {} causal queries at the end of {} keys; give the keys of all queries, or the position of the "
      "first query (start)",
      queries, keys);
  return start.value_or(keys - queries);
}

void check_segments(const Tensor& q, const Tensor& k, const std::vector<std::int64_t>& ends) {
  const std::int64_t length = q.shape()[1], positions = q.shape()[0] * length;
  check_model(k.shape()[1] == length, "attention: {} queries and {} keys with segments; give as many keys as queries",
              length, k.shape()[1]);
  std::int64_t begin = 0;
  for (const std::int64_t end : ends) {
    check_model(
        end > begin && end <= positions && end <= (begin / length + 1) * length,
        "attention: a segment from position {} to {} of {} rows of {}; ends ascend, and every row ends a segment",
        begin, end, q.shape()[0], length);
    begin = end;
  }
  check_model(begin == positions, "attention: segments end at position {} of {}; every row ends a segment", begin,
              positions);
}

void check_targets(std::string_view op, const Tensor& logits, const Tensor& targets) {
  check_model(logits.shape().ndim() >= 1 && targets.numel() == row_count(logits),
              "{}: logits {} with targets {}; one target for each row of logits is needed", op, logits.shape(),
              targets.shape());
}

double smallest_number(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return -0x1.FEp127;
    case DType::kF16:
      return -65504.0;
    case DType::kF64:
      return std::numeric_limits<double>::lowest();
    default:
      return static_cast<double>(std::numeric_limits<float>::lowest());
  }
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
