// A size and the streams of the sharding engine, for tests of the device, which knows none of them.
#pragma once

#include "engine/device/stream_id.h"

namespace loom::device {

constexpr std::int64_t kMiB = 1 << 20;
constexpr StreamId kGatherCopyInStream{1, "gather_copy_in"};
constexpr StreamId kGatherStream{2, "gather"};
constexpr StreamId kReduceScatterStream{3, "reduce_scatter"};

}  // namespace loom::device
