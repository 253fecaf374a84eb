#include "engine/nn/make_rank.h"

#include "engine/core/parallel.h"

namespace loom::nn {

device::Device& make_rank(RankContext& context, const RankSetup& setup) {
  device::Device& device = device::Device::install(context, setup.device);
  context.slot<ComputePool>().resize(setup.compute_threads);
  context.slot<KernelOptions>() = setup.kernels;
  return device;
}

}  // namespace loom::nn
