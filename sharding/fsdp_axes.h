// FsdpAxes: the ranks over which one fully_shard call shards and replicates.
//
// shard      N ranks; each keeps 1 / N of every parameter. Gathers and reduce-scatters run over it.
// replicate  M ranks that keep the same shard; all-reduces of gradients run over it.
// parts      ranks whose modules have other parts of the same whole parameters (the experts of other ranks, the
//            matrices of tensor parallelism), or the same ones; none: the parameters are whole here. Nothing is
//            gathered over it in a step; norms sum over it, and whole parameters are put together over it.
//
// FSDP works on axes, not on meshes: axes of one mesh, or some flattened (dp_shard and cp into one shard axis). Calls
// on one model may have different ones.
#pragma once

#include <optional>
#include <vector>

#include "engine/comm/mesh.h"

namespace loom::sharding {

struct FsdpAxes {
  comm::Axis shard;
  comm::Axis replicate;
  std::optional<comm::Axis> parts = {};

  // The axes dp_shard and dp_replicate of a mesh that has both.
  static FsdpAxes of(const comm::DeviceMesh& mesh) { return {mesh.axis("dp_shard"), mesh.axis("dp_replicate")}; }
  // All ranks of the world: groups of `shard_size` consecutive ranks shard, the others replicate; of each
  // `tensor_size` neighbours, which share matrices, one is in each. Collective. ConfigError unless `shard_size` divides
  // the number of ranks by `tensor_size`.
  static FsdpAxes over(comm::World& world, int shard_size, int tensor_size = 1);
};

bool same_ranks(const comm::Axis& a, const comm::Axis& b);
// `axes` in their order, each set of ranks once.
std::vector<comm::Axis> distinct(const std::vector<comm::Axis>& axes);

}  // namespace loom::sharding
