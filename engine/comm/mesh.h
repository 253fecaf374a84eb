// DeviceMesh: W ranks as M x N. The replicate axis (M) is outer, the shard axis (N) inner: consecutive ranks share a
// shard group.
//
// Rank w is row w / N, column w % N. M = 1 is a plain 1-D mesh.
#pragma once

#include <map>
#include <memory>

#include "engine/comm/process_group.h"

namespace loom::comm {

class DeviceMesh {
 public:
  // Collective. Precondition: world.size() % shard_size == 0.
  static DeviceMesh create(World& world, int shard_size);

  int shard_size() const { return shard_->size(); }
  int replicate_size() const { return replicate_ == nullptr ? 1 : replicate_->size(); }
  int world_size() const { return shard_size() * replicate_size(); }
  int shard_rank() const { return shard_->rank(); }
  ProcessGroup& shard() const { return *shard_; }
  // Null when M = 1.
  ProcessGroup* replicate() const { return replicate_.get(); }
  // The `ranks` consecutive ranks this one is among, on one shard group. Collective at its first use for a number; made
  // once. Precondition: ranks divides shard_size().
  ProcessGroup& consecutive(int ranks) const;

 private:
  World* world_ = nullptr;  // outlives the mesh
  mutable std::map<int, std::shared_ptr<ProcessGroup>> consecutive_;
  std::shared_ptr<ProcessGroup> shard_;
  std::shared_ptr<ProcessGroup> replicate_;
};

}  // namespace loom::comm
