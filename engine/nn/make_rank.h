// make_rank(): gives a rank its emulated device, the threads of its loops and its kernels.
//
// Order    before any tensor of the rank is made; once per rank.
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

// A rank of its own in a world of one, current on this thread while it lives. For code that runs before the ranks of
// the job start and needs a device: the constructor of a model puts its buffers there.
class ProbeRank {
 public:
  ProbeRank() { make_rank(context_, {}); }
  ProbeRank(const ProbeRank&) = delete;
  ProbeRank& operator=(const ProbeRank&) = delete;

 private:
  RankContext context_{0, 1};
  const RankScope scope_{context_};
};

}  // namespace loom::nn
