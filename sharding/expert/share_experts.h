// Expert parallelism: the ranks that share the experts of a layer, and the cut of their parameters.
//
// Mesh      W ranks are efsdp x ep, ep fastest: ep neighbours share one set of experts, and the efsdp ranks with the
//           same experts shard each of them (or, without sharding, keep copies and average their gradients).
// Data      every rank has its own, the ranks of one set too: expert gradients are divided by W, as all others.
// Cut       on dim 0 over ep; then FSDP cuts over efsdp, matrices of experts ([E, ..., ...]) on dim 1 where efsdp
//           divides it, so that efsdp x ep may exceed the number of experts.
// Errors    ConfigError for a module that is no ExpertModule, and for a number of experts that ep does not divide.
// Source    MindSpeed-MM, fsdp2_config.yaml: expert_parallel_size, moe_modules, reshard_local_experts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/nn/module.h"
#include "sharding/expert/expert_module.h"
#include "sharding/policy.h"

namespace loom::sharding {

// The axes of experts that `expert_parallel_size` ranks share. Collective.
FsdpAxes expert_axes(comm::World& world, int expert_parallel_size, bool shards);

// ConfigError, beginning with `where`, unless the module at `path` has experts that `ranks` ranks can share.
void check_shares_experts(nn::Module& model, const std::string& path, int ranks, std::string_view where);

// Leaves each module with the experts of this rank of `axis`. Before parameters are sharded.
void share_experts(nn::Module& model, const std::vector<std::string>& paths, const comm::Axis& axis,
                   const ExpertSharing& sharing = {});

// The options of the group of an expert module, of those of the other groups.
FullyShardOptions expert_options(const FullyShardOptions& options);

}  // namespace loom::sharding
