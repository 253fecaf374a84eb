#include "sharding/sharded_parameters.h"

#include "sharding/fsdp/fsdp_state.h"
#include "sharding/streams.h"

namespace loom::sharding {

nn::ShardedParameters sharded_parameters(nn::Module& root) {
  nn::ShardedParameters found;
  for (FsdpState* state : FsdpState::collect(root)) {
    if (state->group() == nullptr) continue;
    const auto& ranks = state->group()->axes().shard.shared_group();
    for (const auto& param : state->group()->params()) {
      found[param->sharded().id()] = {ranks, param->chunk().padded_rows, param->shape(), param->shard_dim(),
                                      kGatherStream};
    }
  }
  return found;
}

}  // namespace loom::sharding
