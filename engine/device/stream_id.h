// The streams of a device, by name. Memory is pooled by them too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace loom::device {

enum class StreamId : std::uint8_t {
  kCompute,
  kGatherCopyIn,
  kGather,
  kReduceScatter,
  kAllReduce,
  kH2D,
  kD2H,
  kExchange
};
inline constexpr std::size_t kStreams = 8;
// "compute", "gather_copy_in", "gather", ...
std::string_view name(StreamId stream);

}  // namespace loom::device
