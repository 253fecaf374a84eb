// The streams of a device, by name. Memory is pooled by them too.
#pragma once

#include <cstddef>
#include <cstdint>

namespace loom::device {

enum class StreamId : std::uint8_t { kCompute, kGatherCopyIn, kGather, kReduceScatter, kAllReduce, kH2D, kD2H };
inline constexpr std::size_t kStreams = 7;

}  // namespace loom::device
