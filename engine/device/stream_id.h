// A stream of a device: a place among kStreams, and a name for people. Memory is pooled by streams too.
//
// The device names the streams that every program has. Rooms that issue work to others name theirs as values
// (sharding/streams.h); a place has one name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace loom::device {

inline constexpr std::size_t kStreams = 12;

class StreamId {
 public:
  static const StreamId kCompute;  // runs on the host thread
  static const StreamId kH2D;
  static const StreamId kD2H;

  // `place` is below kStreams; `name` is a literal.
  constexpr StreamId(std::uint8_t place, std::string_view name) : name_(name), place_(place) {}

  constexpr std::size_t place() const { return place_; }
  constexpr std::string_view name() const { return name_; }
  friend constexpr bool operator==(StreamId a, StreamId b) { return a.place_ == b.place_; }

 private:
  std::string_view name_;
  std::uint8_t place_;
};

inline constexpr StreamId StreamId::kCompute{0, "compute"};
inline constexpr StreamId StreamId::kH2D{5, "h2d"};
inline constexpr StreamId StreamId::kD2H{6, "d2h"};

}  // namespace loom::device
