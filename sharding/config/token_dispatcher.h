// TokenDispatcher: how tokens reach the experts of other ranks.
#pragma once

#include <cstdint>

namespace loom::sharding {

enum class TokenDispatcher : std::uint8_t {
  kAllToAll,   // each to the ranks that have its experts
  kAllGather,  // all to all ranks; results are summed
};

}  // namespace loom::sharding
