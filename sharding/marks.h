// Marks of a sharded step (device::Mark): what FSDP does with a group, beside the device's entries.
#pragma once

#include "engine/device/recording.h"

namespace loom::sharding {

inline constexpr device::MarkKind kGatherMark{"AG"};                    // a group's all-gather was issued
inline constexpr device::MarkKind kGatheredMark{"W"};                   // it was waited for: the group is usable
inline constexpr device::MarkKind kReshardMark{"RE"};                   // the full parameters were freed
inline constexpr device::MarkKind kReshardPostForwardMark{"REPF"};      // except for this rank's part among fewer ranks
inline constexpr device::MarkKind kReduceScatterMark{"RS"};             // a group's reduction is about to be issued
inline constexpr device::MarkKind kReduceScatterAllReduceMark{"RSAR"};  // one over both axes of a mesh
inline constexpr device::MarkKind kDropMark{"DROP"};                    // a gather that was never waited for was freed

}  // namespace loom::sharding
