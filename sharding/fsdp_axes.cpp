#include "sharding/fsdp_axes.h"

#include <algorithm>

#include "engine/core/error.h"

namespace loom::sharding {

FsdpAxes FsdpAxes::over(comm::World& world, int shard_size) {
  if (shard_size < 1 || world.size() % shard_size != 0) {
    config_error("shards over {} ranks, but the world has {}; use a divisor of {}", shard_size, world.size(),
                 world.size());
  }
  return of(comm::DeviceMesh::create(world, {{"dp_replicate", world.size() / shard_size}, {"dp_shard", shard_size}}));
}

bool same_ranks(const comm::Axis& a, const comm::Axis& b) {
  return a.shared_group() == b.shared_group() || a.ranks() == b.ranks();
}

std::vector<comm::Axis> distinct(const std::vector<comm::Axis>& axes) {
  std::vector<comm::Axis> kept;
  for (const comm::Axis& axis : axes) {
    if (std::none_of(kept.begin(), kept.end(), [&](const comm::Axis& k) { return same_ranks(k, axis); })) {
      kept.push_back(axis);
    }
  }
  return kept;
}

}  // namespace loom::sharding
