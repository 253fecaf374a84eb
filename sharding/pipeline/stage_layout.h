// StageLayout: what one stage of a pipeline holds, and which rank computes it.
//
// Stages   are counted along the model: stage 0 has the first layers. A rank holds one or more stages, its chunks:
//          stage s is chunk s div ranks of its rank.
// Ranks    are those of the pipeline axis, from 0.
// Layers   are transformer layers, counted from 0 along the model. A stage may have none.
// Threads  any: plain values.
#pragma once

#include <cstdint>
#include <vector>

namespace loom::sharding {

// Which rank has stage s of a pipeline of p ranks.
enum class Placement : std::uint8_t {
  kLoop,  // s mod p
  kV,     // two stages a rank, s and 2p - 1 - s: the first and the last stage lie on rank 0
};

struct StageLayout {
  std::int64_t stage = 0;
  std::int64_t rank = 0;
  std::int64_t chunk = 0;
  std::vector<std::int64_t> layers;
  bool embedding = false;
  bool loss = false;     // with the last norm and the output layer
  std::int64_t mtp = 0;  // layers of multi-token prediction

  bool operator==(const StageLayout&) const = default;
};

}  // namespace loom::sharding
