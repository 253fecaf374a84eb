// KernelChoice: the kernels that a job computes with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/nn/functional.h"

namespace loom::train {

// Kernels, and with them the optimizer's temporaries: fused, or composed as PyTorch eager composes them.
enum class KernelSet : std::uint8_t { kFast, kPytorch };

struct KernelChoice {
  KernelSet set = KernelSet::kFast;
  nn::KernelOptions fused;                       // all on with KernelSet::kFast, by flag with kPytorch
  std::vector<std::string> custom_op_libraries;  // --custom-op-library: paths, or lists of paths with commas
};

}  // namespace loom::train
