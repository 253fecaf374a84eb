// The cost of swap in a planned step: per block, the bytes that leave, how long compute waits for its copies, and how
// long recomputing the same would take.
//
// Exposed    from when the compute stream has nothing else to do, and the host has issued the wait, to the end of the
//            copy that it waits for. If the host itself waits (pageable memory), from when compute is done.
// Recompute  the kernels of the forwards of the block's swapped modules, all micro-batches.
// Threads    any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/device/recording.h"
#include "engine/virtual_time/resolve.h"

namespace loom::plan {

struct SwapEstimate {
  std::string block;           // its path
  std::int64_t copies = 0;     // to the host, in a step
  std::int64_t out_bytes = 0;  // of these
  std::int64_t exposed_ns = 0;
  std::int64_t recompute_ns = 0;
};

// A block and the modules of it whose saved tensors leave.
struct SwappedModules {
  std::string block;
  std::vector<std::string> modules;
};

// `recording` has call sites (nn::CallSites), and entries begin its phases. Only blocks that copy, in the order of
// their first copy.
std::vector<SwapEstimate> estimate_swap(const device::Recording& recording, const virtual_time::RankTimes& times,
                                        const std::vector<SwappedModules>& swapped);

// "" if nothing is swapped; else a line of sums, and, if recompute is cheaper for some blocks, a line about them.
std::string to_text(const std::vector<SwapEstimate>& swaps);

}  // namespace loom::plan
