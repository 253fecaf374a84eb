// Private to engine/nn/optim: work on a tensor where it is, on the device or on the CPU.
#pragma once

#include <string_view>

#include "engine/device/device.h"
#include "engine/tensor/tensor.h"

namespace loom::nn {

template <class F>
void run_beside(const Tensor& tensor, std::string_view kernel, const device::Cost& cost, F&& run) {
  device::Device& device = device::Device::current();
  if (tensor.storage()->place() == Place::kHost) {
    device.run_on_host(kernel, cost, run);
  } else {
    device.launch(kernel, cost, run);
  }
}

}  // namespace loom::nn
