// The device, threads and kernels of a training rank, as its job configures them (engine/nn/make_rank.h).
#pragma once

#include "engine/nn/make_rank.h"
#include "engine/train/sections.h"
#include "offload/host_allocator.h"

namespace loom::train {

// `host`: where the rank's host memory is placed; it is allocated on the first request.
nn::RankSetup rank_setup(const TrainSections& job, const offload::HostAllocatorOptions& host = {});

}  // namespace loom::train
