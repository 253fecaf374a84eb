// The lanes of FSDP's collectives, one per communication stream. Code that calls collectives of its own on a group that
// FSDP uses takes other lanes, or replaces FSDP's calls (custom_comm.h).
#pragma once

#include "engine/comm/process_group.h"

namespace loom::sharding {

inline constexpr comm::Lane kGatherLane{1};
inline constexpr comm::Lane kReduceScatterLane{2};
inline constexpr comm::Lane kAllReduceLane{3};

}  // namespace loom::sharding
