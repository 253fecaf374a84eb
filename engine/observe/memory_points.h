// Memory over time: when a change of the memory takes effect.
//
// Virtual  memory is accounted when the host allocates it, and the host runs ahead. A change takes effect when the
//          compute stream has done the kernels issued before it: in the phase that allocated it, as phases are shown.
//          The report and the trace for Perfetto both show it there.
// Wall     at the host's clock: the compute stream is the host's thread.
// Threads  any.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/device/recording.h"
#include "engine/virtual_time/resolve.h"

namespace loom::observe {

struct MemoryPoint {
  std::int64_t time_ns = 0;
  device::CategoryBytes by_category{};
  std::int64_t allocated_bytes = 0;
  std::int64_t reserved_bytes = 0;
};

// When the compute stream is done with the kernels among the first n entries, for every n.
std::vector<std::int64_t> compute_done(const device::Recording& recording, const virtual_time::RankTimes& times);

// One for each of the recording's samples, ascending in time.
std::vector<MemoryPoint> at_virtual_time(const device::Recording& recording, const virtual_time::RankTimes& times);
// Starts at `origin_ns`; earlier changes are at 0. Wall times are recorded.
std::vector<MemoryPoint> at_wall_time(const device::Recording& recording, std::int64_t origin_ns);

}  // namespace loom::observe
