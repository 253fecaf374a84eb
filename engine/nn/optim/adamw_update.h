// Private to engine/nn/optim: AdamW's update of a run of elements, as the kernel takes it, and its cost.
#pragma once

#include "engine/device/cost.h"
#include "engine/kernels/fused.h"
#include "engine/nn/optim/adamw_rule.h"

namespace loom::nn {

inline kernels::AdamW adamw_update(const Tensor& parameter, const Tensor& grad, const ParameterGroup& group,
                                   const AdamWOptions& options, std::int64_t elems, std::int64_t step) {
  return {.dtype = parameter.dtype(),
          .grad_dtype = grad.dtype(),
          .elems = elems,
          .lr = group.lr.value(),
          .beta1 = options.beta1,
          .beta2 = options.beta2,
          .eps = options.eps,
          .weight_decay = group.weight_decay.value(),
          .grad_scale = 1.0,
          .step = step};
}

// One pass: reads the gradient, reads and writes parameter and moments.
inline device::Cost adamw_cost(const kernels::AdamW& op) {
  const std::int64_t bytes = op.elems * element_bytes(op.dtype);
  return {12.0 * static_cast<double>(op.elems), op.elems * element_bytes(op.grad_dtype) + 3 * bytes, 3 * bytes};
}

}  // namespace loom::nn
