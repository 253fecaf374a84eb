// The device, threads and kernels of a rank that trains, as its job asks for them (engine/nn/make_rank.h).
#pragma once

#include "engine/nn/make_rank.h"
#include "engine/train/sections.h"
#include "offload/host_allocator.h"

namespace loom::train {

// `host`: where the rank's host memory lies; nothing of it is taken before it is asked for.
nn::RankSetup rank_setup(const TrainSections& job, const offload::HostAllocatorOptions& host = {});

}  // namespace loom::train
