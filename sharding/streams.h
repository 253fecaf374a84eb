// The streams of FSDP's copies and collectives (engine/device/stream_id.h), and the kinds of its copies.
#pragma once

#include "engine/device/cost.h"
#include "engine/device/stream_id.h"

namespace loom::sharding {

inline constexpr device::StreamId kGatherCopyInStream{1, "gather_copy_in"};
inline constexpr device::StreamId kGatherStream{2, "gather"};
inline constexpr device::StreamId kReduceScatterStream{3, "reduce_scatter"};
inline constexpr device::StreamId kAllReduceStream{4, "all_reduce"};

inline constexpr device::WorkKind kGatherCopyIn{"gather copy-in"};    // shards into their place before an all-gather
inline constexpr device::WorkKind kGatherCopyOut{"gather copy-out"};  // gathered parameters into theirs
inline constexpr device::WorkKind kReduceCopyIn{"reduce copy-in"};    // gradients into the input of a reduction

}  // namespace loom::sharding
