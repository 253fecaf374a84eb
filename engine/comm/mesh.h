// DeviceMesh: W ranks as M x N. The replicate axis (M) is outer, the shard axis (N) inner: consecutive ranks share a shard group.
//
// Rank w is row w / N, column w % N. M = 1 is a plain 1-D mesh.
#pragma once

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

 private:
  std::shared_ptr<ProcessGroup> shard_;
  std::shared_ptr<ProcessGroup> replicate_;
};

}  // namespace loom::comm
