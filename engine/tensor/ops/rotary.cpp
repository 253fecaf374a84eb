#include "engine/kernels/fused.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/support.h"

namespace loom::ops {
namespace {

Tensor apply(const Tensor& x, const Tensor& cos, const Tensor& sin, bool backward) {
  const Shape& s = x.shape();
  Tensor y = Tensor::empty(s, x.dtype());
  launch(backward ? "rope_grad" : "rope", pass_cost(3.0 * x.numel(), {x, cos, sin}, {y}), [&] {
    kernels::rope({.dtype = x.dtype(),
                   .table_dtype = cos.dtype(),
                   .backward = backward,
                   .batch = cos.shape().ndim() == 3 ? 1 : s[0],
                   .seq = cos.shape().ndim() == 3 ? s[0] * s[1] : s[1],
                   .heads = s[2],
                   .head_dim = s[3]},
                  x.raw(), cos.raw(), sin.raw(), y.raw());
  });
  return y;
}

}  // namespace

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  check_rope(x, cos, sin);
  Tensor y = apply(x, cos, sin, false);
  autograd::record("rope", {x}, {cos, sin}, {y}, [](Saved saved, const Grads& grads, const Needs&) -> Grads {
    return {apply(grads[0], saved[0], saved[1], true)};
  });
  return y;
}

}  // namespace loom::ops
