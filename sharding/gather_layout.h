// GatherLayout: how gathered parameters are laid out. The order of events and the bits are the same.
#pragma once

#include <cstdint>

namespace loom::sharding {

enum class GatherLayout : std::uint8_t {
  kBuffered,  // a gather buffer, then copied out: PyTorch's bytes
  kFast,      // straight into the parameters, or the peers' own memory if ranks share it
};

}  // namespace loom::sharding
