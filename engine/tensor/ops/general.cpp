#include "engine/tensor/ops/general.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>

#include "engine/core/shape_text.h"
#include "engine/tensor/ops/blocks.h"
#include "engine/tensor/ops/broadcast.h"
#include "engine/tensor/ops/maps.h"
#include "engine/tensor/ops/support.h"

namespace loom::ops {
namespace {

using kernels::BinaryOp;

int checked_dim(std::string_view op, const Tensor& x, int dim) {
  const int ndim = x.shape().ndim();
  check_model(ndim > 0 && dim >= -ndim && dim < ndim, "{}: dim {} of {}; it has {} dims", op, dim, x.shape(), ndim);
  return dim < 0 ? dim + ndim : dim;
}

Shape with_size(const Shape& shape, int dim, std::int64_t size) {
  Shape result = shape;
  result[dim] = size;
  return result;
}

Shape reduced(const Shape& shape, int dim, bool keep_dim) {
  if (keep_dim) return with_size(shape, dim, 1);
  std::vector<std::int64_t> sizes = shape.sizes();
  sizes.erase(sizes.begin() + dim);
  return Shape(sizes);
}

Tensor unary(std::string_view kernel, kernels::UnaryOp op, const Tensor& x) {
  Tensor y = Tensor::empty(x.shape(), x.dtype());
  launch(kernel, pass_cost(10.0 * static_cast<double>(x.numel()), {x}, {y}),
         [&] { kernels::unary(op, x.dtype(), x.numel(), x.raw(), y.raw()); });
  return y;
}

// Sum over a dim times `factor`.
Tensor sum_over(std::string_view op, const Tensor& x, int given_dim, bool keep_dim, bool mean) {
  const int dim = checked_dim(op, x, given_dim);
  const AroundDim a = around(x.shape(), dim);
  check_model(!mean || a.size > 0, "{}: dim {} of {} is empty; a mean needs one element", op, dim, x.shape());
  const double factor = mean ? 1.0 / static_cast<double>(a.size) : 1.0;
  Tensor y = Tensor::empty(reduced(x.shape(), dim, keep_dim), x.dtype());
  const kernels::DimSum sum{x.dtype(), x.dtype(), a.outer, a.size, a.inner, factor};
  launch(mean ? "mean_dim" : "sum_dim", pass_cost(static_cast<double>(x.numel()), {x}, {y}),
         [&] { kernels::sum_dim(sum, x.raw(), y.raw()); });
  autograd::record(mean ? "mean_dim" : "sum_dim", {x}, {}, {y},
                   [sum, shape = x.shape()](Saved, const Grads& grads, const Needs&) -> Grads {
                     Tensor dx = Tensor::empty(shape, sum.dtype);
                     launch("sum_dim_grad", pass_cost(static_cast<double>(dx.numel()), {grads[0]}, {dx}),
                            [&] { kernels::repeat_dim(sum, grads[0].raw(), dx.raw()); });
                     return {dx};
                   });
  return y;
}

// Copies columns [at, at + narrow's size of dim) of `wide` to `narrow`, or back.
void copy_part(const Tensor& wide, const Tensor& narrow, int dim, std::int64_t at, bool to_wide) {
  const AroundDim w = around(wide.shape(), dim), n = around(narrow.shape(), dim);
  const std::int64_t element = element_bytes(wide.dtype());
  const std::int64_t wide_row = w.size * w.inner * element, narrow_row = n.size * n.inner * element;
  auto* from = static_cast<std::byte*>(wide.raw()) + at * w.inner * element;
  auto* part = static_cast<std::byte*>(narrow.raw());
  for_rows(n.outer, n.size * n.inner, [&](std::int64_t row) {
    std::byte* of_wide = from + row * wide_row;
    std::byte* of_narrow = part + row * narrow_row;
    std::memcpy(to_wide ? of_wide : of_narrow, to_wide ? of_narrow : of_wide, static_cast<std::size_t>(narrow_row));
  });
}

// One part of x along `dim`, unrecorded.
Tensor slice_of(std::string_view kernel, const Tensor& x, int dim, std::int64_t at, std::int64_t size) {
  Tensor part = Tensor::empty(with_size(x.shape(), dim, size), x.dtype());
  launch(kernel, pass_cost(0, {part}, {part}), [&] { copy_part(x, part, dim, at, false); });
  return part;
}

Tensor swapped(std::string_view kernel, const Tensor& x, int a, int b) {
  std::vector<int> order(static_cast<std::size_t>(x.shape().ndim()));
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[static_cast<std::size_t>(a)], order[static_cast<std::size_t>(b)]);
  Shape shape = x.shape();
  std::swap(shape[a], shape[b]);
  Tensor y = Tensor::empty(shape, x.dtype());
  launch(kernel, pass_cost(0, {x}, {y}),
         [&] { kernels::permute_dims(element_bytes(x.dtype()), x.shape().sizes(), order, x.raw(), y.raw()); });
  return y;
}

void check_concat(const std::vector<Tensor>& parts, int dim) {
  const Shape& first = parts.front().shape();
  for (const Tensor& part : parts) {
    const Shape& shape = part.shape();
    const bool fits = shape.ndim() == first.ndim() && with_size(shape, dim, 0) == with_size(first, dim, 0);
    check_model(fits && part.dtype() == parts.front().dtype(),
                "concat: {} {} with {} {} along dim {}; all other dims and the dtype need to be the same",
                name(parts.front().dtype()), first, name(part.dtype()), shape, dim);
  }
}

}  // namespace

Tensor sub(const Tensor& a, const Tensor& b) {
  check_broadcast("sub", a, b);
  Tensor y = broadcast_binary("sub", BinaryOp::kSub, a, b);
  autograd::record("sub", {a, b}, {}, {y},
                   [of_a = a.shape(), of_b = b.shape()](Saved, const Grads& grads, const Needs& needs) -> Grads {
                     const autograd::NoGrad no_grad;
                     return {needs[0] ? sum_repeated(grads[0], of_a) : Tensor{},
                             needs[1] ? scale(sum_repeated(grads[0], of_b), -1) : Tensor{}};
                   });
  return y;
}

Tensor div(const Tensor& a, const Tensor& b) {
  check_broadcast("div", a, b);
  Tensor y = broadcast_binary("div", BinaryOp::kDiv, a, b);
  autograd::record("div", {a, b}, {b, y}, {y},
                   [of_a = a.shape(), of_b = b.shape()](Saved saved, const Grads& grads, const Needs& needs) -> Grads {
                     const autograd::NoGrad no_grad;
                     const Tensor over_b = broadcast_binary("div", BinaryOp::kDiv, grads[0], saved[0]);
                     Grads result(2);
                     if (needs[0]) result[0] = sum_repeated(over_b, of_a);
                     if (needs[1]) {
                       const Tensor product = broadcast_binary("mul", BinaryOp::kMul, over_b, saved[1]);
                       result[1] = scale(sum_repeated(product, of_b), -1);
                     }
                     return result;
                   });
  return y;
}

Tensor add_scalar(const Tensor& x, double value) {
  Tensor y = map_elements(
      "add_scalar", 1, [value](auto v) { return v + kernels::simd::splat<decltype(v)>(value); }, x);
  autograd::record("add_scalar", {x}, {}, {y},
                   [](Saved, const Grads& grads, const Needs&) -> Grads { return {grads[0]}; });
  return y;
}

Tensor exp(const Tensor& x) {
  Tensor y = unary("exp", kernels::UnaryOp::kExp, x);
  autograd::record("exp", {x}, {y}, {y}, [](Saved saved, const Grads& grads, const Needs&) -> Grads {
    return {broadcast_binary("mul", BinaryOp::kMul, grads[0], saved[0])};
  });
  return y;
}

Tensor log(const Tensor& x) {
  Tensor y = unary("log", kernels::UnaryOp::kLog, x);
  autograd::record("log", {x}, {x}, {y}, [](Saved saved, const Grads& grads, const Needs&) -> Grads {
    return {broadcast_binary("div", BinaryOp::kDiv, grads[0], saved[0])};
  });
  return y;
}

Tensor sigmoid(const Tensor& x) {
  Tensor y = map_elements(
      "sigmoid", 4, [](auto v) { return kernels::simd::sigmoid(v); }, x);
  autograd::record("sigmoid", {x}, {y}, {y}, [](Saved saved, const Grads& grads, const Needs&) -> Grads {
    const auto gradient = [](auto s, auto d) { return d * s * (1.0f - s); };
    return {map_elements("sigmoid_grad", 3, gradient, saved[0], grads[0])};
  });
  return y;
}

Tensor sum(const Tensor& x) { return scale(mean(x), static_cast<double>(x.numel())); }
Tensor sum(const Tensor& x, int dim, bool keep_dim) { return sum_over("sum", x, dim, keep_dim, false); }
Tensor mean(const Tensor& x, int dim, bool keep_dim) { return sum_over("mean", x, dim, keep_dim, true); }

Tensor concat(const std::vector<Tensor>& parts, int given_dim) {
  check_model(!parts.empty(), "concat: no tensor is given; give one or more");
  const int dim = checked_dim("concat", parts.front(), given_dim);
  check_concat(parts, dim);
  std::vector<std::int64_t> sizes;
  for (const Tensor& part : parts) sizes.push_back(part.shape()[dim]);
  const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  Tensor y = Tensor::empty(with_size(parts.front().shape(), dim, total), parts.front().dtype());
  launch("concat", pass_cost(0, {y}, {y}), [&] {
    std::int64_t at = 0;
    for (const Tensor& part : parts) {
      copy_part(y, part, dim, at, true);
      at += part.shape()[dim];
    }
  });
  autograd::record("concat", parts, {}, {y}, [sizes, dim](Saved, const Grads& grads, const Needs& needs) -> Grads {
    Grads result(sizes.size());
    std::int64_t at = 0;
    for (std::size_t i = 0; i < sizes.size(); at += sizes[i++]) {
      if (needs[i]) result[i] = slice_of("concat_grad", grads[0], dim, at, sizes[i]);
    }
    return result;
  });
  return y;
}

std::vector<Tensor> split(const Tensor& x, const std::vector<std::int64_t>& sizes, int given_dim) {
  const int dim = checked_dim("split", x, given_dim);
  const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  check_model(total == x.shape()[dim] && std::all_of(sizes.begin(), sizes.end(), [](auto size) { return size >= 0; }),
              "split: parts of {} elements from dim {} of {}; the parts need the dim as their sum", total, dim,
              x.shape());
  std::vector<Tensor> parts;
  std::int64_t at = 0;
  for (const std::int64_t size : sizes) {
    parts.push_back(slice_of("split", x, dim, at, size));
    at += size;
  }
  autograd::record(
      "split", {x}, {}, parts,
      [shape = x.shape(), dtype = x.dtype(), sizes, dim](Saved, const Grads& grads, const Needs&) -> Grads {
        const Tensor dx = Tensor::zeros(shape, dtype);
        std::int64_t at = 0;
        for (std::size_t i = 0; i < sizes.size(); at += sizes[i++]) {
          if (i >= grads.size() || !grads[i].defined()) continue;
          launch("split_grad", pass_cost(0, {grads[i]}, {grads[i]}), [&] { copy_part(dx, grads[i], dim, at, true); });
        }
        return {dx};
      });
  return parts;
}

Tensor transpose(const Tensor& x, int dim_a, int dim_b) {
  const int a = checked_dim("transpose", x, dim_a), b = checked_dim("transpose", x, dim_b);
  Tensor y = swapped("transpose", x, a, b);
  autograd::record("transpose", {x}, {}, {y}, [a, b](Saved, const Grads& grads, const Needs&) -> Grads {
    return {swapped("transpose_grad", grads[0], a, b)};
  });
  return y;
}

namespace {

// A bool mask as numbers to add: 0 where the key is seen, the dtype's smallest number elsewhere.
Tensor additive(const Tensor& mask, DType dtype) {
  if (mask.dtype() != DType::kBool) return mask;
  Tensor numbers = Tensor::empty(mask.shape(), dtype);
  launch("mask", pass_cost(static_cast<double>(mask.numel()), {mask}, {numbers}), [&] {
    const bool* seen = mask.data<bool>();
    kernels::visit_float_dtype("mask", dtype, [&]<class T>() {
      using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;
      const auto hidden = T(static_cast<Real>(smallest_number(dtype)));
      for (std::int64_t i = 0; i < mask.numel(); ++i) {
        numbers.data<T>()[i] = seen[i] ? T(0.0f) : hidden;
      }
    });
  });
  return numbers;
}

}  // namespace

Tensor masked_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, double scale) {
  check_attention(q, k, v, false, {});
  const Shape scores{q.shape()[0], q.shape()[2], q.shape()[1], k.shape()[1]};
  check_model(
      broadcast_shape(mask.shape(), scores) == scores && (mask.dtype() == DType::kBool || mask.dtype() == q.dtype()),
      "masked_attention: mask {} {} for scores {} {}; it needs to broadcast to [batch, heads, queries, keys], "
      "as bool or in the dtype of q",
      name(mask.dtype()), mask.shape(), name(q.dtype()), scores);
  const std::int64_t times = q.shape()[2] / k.shape()[2];
  const Tensor keys = repeat_kv(swap_dims_1_2(k), times);
  const Tensor values = repeat_kv(swap_dims_1_2(v), times);
  Tensor weights = ops::scale(bmm(swap_dims_1_2(q), keys, true), scale);
  weights = softmax(add(weights, additive(mask, q.dtype())));
  return swap_dims_1_2(bmm(weights, values, false));
}

Tensor embedding_bag(const Tensor& ids, const std::vector<std::int64_t>& offsets, const Tensor& table, BagMode mode) {
  const std::int64_t count = ids.numel();
  const bool ascending = std::is_sorted(offsets.begin(), offsets.end()) &&
                         (offsets.empty() || (offsets.front() == 0 && offsets.back() <= count));
  check_model(ids.shape().ndim() == 1 && ascending && (!offsets.empty() || count == 0),
              "embedding_bag: {} bags over ids {}; ids are one row, offsets ascend from 0 to at most their number",
              offsets.size(), ids.shape());
  const Tensor rows = embedding(ids, table);
  kernels::Bags bags{rows.dtype(), table.shape()[1], mode == BagMode::kMean, offsets};
  bags.begin.push_back(count);
  Tensor y = Tensor::empty({static_cast<std::int64_t>(offsets.size()), bags.dim}, rows.dtype());
  launch("bag_sum", pass_cost(static_cast<double>(rows.numel()), {rows}, {y}),
         [&] { kernels::bag_sum(bags, rows.raw(), y.raw()); });
  autograd::record("bag_sum", {rows}, {}, {y}, [bags](Saved, const Grads& grads, const Needs&) -> Grads {
    Tensor drows = Tensor::empty({bags.begin.back(), bags.dim}, bags.dtype);
    launch("bag_sum_grad", pass_cost(static_cast<double>(drows.numel()), {grads[0]}, {drows}),
           [&] { kernels::bag_sum_grad(bags, grads[0].raw(), drows.raw()); });
    return {drows};
  });
  return y;
}

}  // namespace loom::ops
