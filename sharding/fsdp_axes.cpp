#include "sharding/fsdp_axes.h"

#include <algorithm>

#include "engine/core/error.h"

namespace loom::sharding {

FsdpAxes FsdpAxes::over(comm::World& world, int shard_size, int tensor_size) {
  const int ranks = world.size() / tensor_size;
  if (shard_size < 1 || ranks % shard_size != 0) {
    config_error("shards over {} ranks, but the world has {}; use a divisor of {}", shard_size, ranks, ranks);
  }
  const auto mesh = comm::DeviceMesh::create(
      world, {{"dp_replicate", ranks / shard_size}, {"dp_shard", shard_size}, {"tp", tensor_size}});
  FsdpAxes axes = of(mesh);
  if (tensor_size > 1) axes.parts = mesh.axis("tp");
  return axes;
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
