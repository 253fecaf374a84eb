#include "engine/comm/mesh.h"

#include <utility>
#include <vector>

#include "engine/core/error.h"

namespace loom::comm {
namespace {

// The group this rank is in, out of `groups` groups of `size`; member j of group g is first(g) + j * stride.
template <class First>
std::shared_ptr<ProcessGroup> own_group(World& world, int groups, int size, int stride, const First& first,
                                        const char* name) {
  std::shared_ptr<ProcessGroup> own;
  for (int g = 0; g < groups; ++g) {
    std::vector<int> ranks;
    for (int j = 0; j < size; ++j) ranks.push_back(first(g) + j * stride);
    std::shared_ptr<ProcessGroup> made = world.group(ranks, name);
    if (made != nullptr) own = std::move(made);
  }
  return own;
}

}  // namespace

DeviceMesh DeviceMesh::create(World& world, int shard_size) {
  require(shard_size > 0 && world.size() % shard_size == 0, "mesh: shard_size is {}, must divide the world of {} ranks",
          shard_size, world.size());
  const int replicate_size = world.size() / shard_size;
  DeviceMesh mesh;
  mesh.world_ = &world;
  mesh.shard_ = own_group(
      world, replicate_size, shard_size, 1, [&](int row) { return row * shard_size; }, "shard");
  if (replicate_size > 1) {
    mesh.replicate_ = own_group(
        world, shard_size, replicate_size, shard_size, [](int column) { return column; }, "replicate");
  }
  return mesh;
}

ProcessGroup& DeviceMesh::consecutive(int ranks) const {
  require(ranks > 0 && shard_size() % ranks == 0, "mesh: {} consecutive ranks, must divide the shard axis of {}", ranks,
          shard_size());
  std::shared_ptr<ProcessGroup>& group = consecutive_[ranks];
  if (group == nullptr) {
    group = own_group(
        *world_, world_size() / ranks, ranks, 1, [&](int row) { return row * ranks; }, "post_forward");
  }
  return *group;
}

}  // namespace loom::comm
