// make_rank(): gives a rank what it computes with: its emulated device, the threads of its loops, its kernels.
//
// Order    before any tensor of the rank is made; once a rank.
// Threads  the rank's host thread, or before it starts.
#pragma once

#include "engine/core/rank_context.h"
#include "engine/device/device.h"
#include "engine/nn/functional.h"

namespace loom::nn {

struct RankSetup {
  device::DeviceOptions device = {};
  int compute_threads = 1;
  KernelOptions kernels = {};
};

// The device belongs to the rank.
device::Device& make_rank(RankContext& context, const RankSetup& setup);

}  // namespace loom::nn
