// State tensors of an optimizer beside a parameter: on its device, or on the host with the same pinning. fp32, fp64 for
// fp64 parameters.
#pragma once

#include "engine/tensor/tensor.h"

namespace loom::nn {

inline Tensor empty_moment_like(const Tensor& parameter) {
  const DType dtype = parameter.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  return Tensor::empty_beside(parameter, parameter.shape(), dtype, device::MemCategory::kOptimizerState,
                              "optimizer state");
}

inline Tensor moment_like(const Tensor& parameter) {
  Tensor moment = empty_moment_like(parameter);
  moment.fill(0);
  return moment;
}

}  // namespace loom::nn
