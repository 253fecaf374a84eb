// Blocks of the composed operators that move elements: halves, dims, repeated heads.
#include <cstring>
#include <vector>

#include "engine/core/shape_text.h"
#include "engine/kernels/reduce.h"
#include "engine/tensor/ops/composed.h"
#include "engine/tensor/ops/maps.h"

namespace loom::ops {
namespace {

// [a, b] -> [sign * b, -sign * a] in each row.
void swap_halves(const Tensor& x, const Tensor& y, float sign) {
  kernels::visit_float_dtype("rotate_half", x.dtype(), [&]<class T>() {
    using V = kernels::simd::Pack<T>;
    const std::int64_t cols = x.shape()[-1];
    const std::int64_t half = cols / 2;
    const T* from = x.data<T>();
    T* to = y.data<T>();
    for_rows(row_count(x), cols, [&](std::int64_t row) {
      const T* a = from + row * cols;
      T* out = to + row * cols;
      kernels::simd::for_packs<V>(half, [&](std::int64_t i, auto part) {
        kernels::simd::store(out + i, sign * kernels::simd::load<V>(a + half + i, part), part);
        kernels::simd::store(out + half + i, -sign * kernels::simd::load<V>(a + i, part), part);
      });
    });
  });
}

Tensor swapped_dims(const Tensor& x) {
  const Shape& s = x.shape();
  Tensor y = Tensor::empty({s[0], s[2], s[1], s[3]}, x.dtype());
  launch("swap_dims", pass_cost(0, {x}, {y}), [&] {
    const auto row_bytes = s[3] * element_bytes(x.dtype());
    const auto* from = static_cast<const std::byte*>(x.raw());
    auto* to = static_cast<std::byte*>(y.raw());
    for_rows(s[0] * s[1] * s[2], s[3], [&](std::int64_t row) {  // rows of y: (b, outer, inner)
      const std::int64_t inner = row % s[1];
      const std::int64_t outer = row / s[1] % s[2];
      const std::int64_t source = (row / (s[1] * s[2]) * s[1] + inner) * s[2] + outer;
      std::memcpy(to + static_cast<std::size_t>(row) * row_bytes, from + static_cast<std::size_t>(source) * row_bytes,
                  row_bytes);
    });
  });
  return y;
}

}  // namespace

// PyTorch makes -b, then the concatenation; backward makes one gradient of x a half and adds them.
Tensor rotate_half(const Tensor& x) {
  check_model(x.shape().ndim() >= 1 && x.shape()[-1] % 2 == 0,
              "rotate_half: the last dim of {} is odd; an even one is needed", x.shape());
  const auto rotate = [](std::string_view kernel, const Tensor& from, float sign) {
    Tensor to = Tensor::empty(from.shape(), from.dtype());
    launch(kernel, pass_cost(static_cast<double>(from.numel()), {from}, {to}), [&] { swap_halves(from, to, sign); });
    return to;
  };
  const auto half_of = [](const Tensor& from) {
    return Tensor::empty(with_last(from.shape(), from.shape()[-1] / 2), from.dtype(), device::MemCategory::kTemporary);
  };
  const Tensor negated = half_of(x);
  Tensor y = rotate("rotate_half", x, -1.0f);
  autograd::record("rotate_half", {x}, {}, {y}, [=](Saved, const Grads& grads, const Needs&) -> Grads {
    const Tensor negated = half_of(grads[0]);
    const Tensor other_half = Tensor::empty(grads[0].shape(), grads[0].dtype(), device::MemCategory::kTemporary);
    return {rotate("rotate_half_grad", grads[0], 1.0f)};
  });
  return y;
}

Tensor swap_dims_1_2(const Tensor& x) {
  check_model(x.shape().ndim() == 4, "swap_dims_1_2: {} has not 4 dims; reshape it", x.shape());
  Tensor y = swapped_dims(x);
  autograd::record("swap_dims", {x}, {}, {y},
                   [](Saved, const Grads& grads, const Needs&) -> Grads { return {swapped_dims(grads[0])}; });
  return y;
}

Tensor repeat_kv(const Tensor& x, std::int64_t times) {
  check_model(x.shape().ndim() == 4 && times >= 1,
              "repeat_kv: {} repeated {} times; [batch, heads, sequence, head dim] and 1 or more times are needed",
              x.shape(), times);
  if (times == 1) return x;
  const Shape& s = x.shape();
  const std::int64_t heads = s[0] * s[1];
  const std::int64_t head_elems = s[2] * s[3];
  const auto head_bytes = head_elems * element_bytes(x.dtype());
  Tensor y = Tensor::empty({s[0], s[1] * times, s[2], s[3]}, x.dtype());
  launch("repeat_kv", pass_cost(0, {x}, {y}), [&] {
    const auto* from = static_cast<const std::byte*>(x.raw());
    auto* to = static_cast<std::byte*>(y.raw());
    for_rows(heads * times, head_elems, [&](std::int64_t head) {
      std::memcpy(to + static_cast<std::size_t>(head) * head_bytes,
                  from + static_cast<std::size_t>(head / times) * head_bytes, head_bytes);
    });
  });
  autograd::record("repeat_kv", {x}, {}, {y}, [=, shape = s](Saved, const Grads& grads, const Needs&) -> Grads {
    const Tensor& dy = grads[0];
    Tensor dx = Tensor::empty(shape, dy.dtype());
    launch("repeat_kv_grad", pass_cost(static_cast<double>(dy.numel()), {dy}, {dx}), [&] {
      const auto* from = static_cast<const std::byte*>(dy.raw());
      auto* to = static_cast<std::byte*>(dx.raw());
      for_rows(heads, head_elems * times, [&](std::int64_t head) {
        std::vector<const void*> copies;
        for (std::int64_t t = 0; t < times; ++t)
          copies.push_back(from + static_cast<std::size_t>(head * times + t) * head_bytes);
        kernels::sum_in_order(dy.dtype(), copies, 1.0, head_elems, to + static_cast<std::size_t>(head) * head_bytes);
      });
    });
    return {dx};
  });
  return y;
}

}  // namespace loom::ops
