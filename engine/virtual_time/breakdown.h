// Breakdown: how a rank spent its virtual time.
//
// Every instant counts once, for the first of these that applies; comm_ns is apart and counts hidden collectives too.
#pragma once

#include <cstdint>

#include "engine/virtual_time/resolve.h"

namespace loom::virtual_time {

struct Breakdown {
  std::int64_t compute_ns = 0;       // a kernel of the compute stream runs
  std::int64_t exposed_comm_ns = 0;  // else a collective runs
  std::int64_t exposed_copy_ns = 0;  // else a copy of another stream runs, over the host link or in the device
  std::int64_t idle_ns = 0;          // nothing runs: the host has issued nothing that could, or a peer is late
  std::int64_t comm_ns = 0;          // a collective runs, hidden or not
};

// From `begin_ns` to `end_ns`.
Breakdown break_down(const device::Recording& recording, const RankTimes& times, std::int64_t begin_ns,
                     std::int64_t end_ns);

}  // namespace loom::virtual_time
