// Breakdown: how a rank spent its virtual time.
//
// Every instant counts once, for the first of these that applies; comm_ns is apart and counts hidden collectives too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

// The exposed collectives over one axis of ranks.
struct AxisTime {
  std::string axis;
  std::int64_t exposed_ns = 0;

  bool operator==(const AxisTime&) const = default;
};

// Breakdown::exposed_comm_ns by axis, in the order of their first collectives; axes whose collectives are all hidden
// are there with 0. Where several collectives run, the one that was issued first counts.
std::vector<AxisTime> exposed_by_axis(const device::Recording& recording, const RankTimes& times, std::int64_t begin_ns,
                                      std::int64_t end_ns);

}  // namespace loom::virtual_time
