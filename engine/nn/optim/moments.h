// State tensors of an optimizer beside a parameter: in its dtype, on its device, or on the host with the same pinning.
#pragma once

#include "engine/tensor/tensor.h"

namespace loom::nn {

inline Tensor empty_moment_like(const Tensor& parameter) {
  return Tensor::empty_beside(parameter, parameter.shape(), parameter.dtype(), device::MemCategory::kOptimizerState,
                              "optimizer state");
}

inline Tensor moment_like(const Tensor& parameter) {
  Tensor moment = empty_moment_like(parameter);
  moment.fill(0);
  return moment;
}

}  // namespace loom::nn
