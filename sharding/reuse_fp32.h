// --reuse-fp32-param: between steps a shard's fp32 values and its bf16 copy share one memory.
//
// What      split_shards() turns every fp32 shard that is gathered in bf16 into residuals and bf16 values, in place
//           (kernels/split_fp32.h); gathers then send the bf16 half directly: no cast, no buffer of casts, and with
//           offload_to_cpu half the bytes to the device. join_shards() restores the fp32 values for every reader or
//           writer: the optimizer, checkpoints, files.
// Bits      the same as without it: the bf16 half equals the cast, and joining is exact.
// Memory    one bit per element of a shard beside it, made at the first split; 2 bytes per element of the largest shard
//           during a conversion.
// State     all shards of a module are split, or none is. Both calls do nothing if it is in that state already.
// Errors    InvariantError from sharding::local_state_dict() and for_each_full_parameter() for split shards.
// Threads   the rank's host thread; no collectives.
// Source    MindSpeed, --reuse-fp32-param.
#pragma once

#include "engine/nn/module.h"

namespace loom::sharding {

void split_shards(nn::Module& root);
void join_shards(nn::Module& root);
bool has_split_shards(nn::Module& root);

// While it lives, the shards of `root` are joined; shards that were split are split again at its end.
class JoinedShards {
 public:
  explicit JoinedShards(nn::Module& root);
  ~JoinedShards();
  JoinedShards(const JoinedShards&) = delete;
  JoinedShards& operator=(const JoinedShards&) = delete;

 private:
  nn::Module& root_;
  const bool were_split_;
};

}  // namespace loom::sharding
