// The categories of FSDP's memory (engine/device/mem_category.h), and all categories in the order of reports.
#pragma once

#include <array>

#include "engine/device/mem_category.h"

namespace loom::sharding {

// This rank's rows of parameters.
inline constexpr device::MemCategory kShard{0, "shard", device::LifeClass::kStatic};
// Input and output of all-gathers in flight.
inline constexpr device::MemCategory kGatherBuffer{1, "gather_buffer", device::LifeClass::kCommunication};
// Input and output of reductions in flight.
inline constexpr device::MemCategory kReduceBuffer{4, "reduce_buffer", device::LifeClass::kCommunication};

inline constexpr std::array<device::MemCategory, device::kMemCategories> kMemCategories{
    kShard,
    kGatherBuffer,
    device::MemCategory::kParameter,
    device::MemCategory::kGradient,
    kReduceBuffer,
    device::MemCategory::kOptimizerState,
    device::MemCategory::kActivation,
    device::MemCategory::kTemporary};

}  // namespace loom::sharding
