// Full parameters: what the shards of a wrapped module are together, and the way back; and the shards themselves as a
// state dict.
//
// Boxes      shards go by nn::ShardSpec. What is put together here is what one shard axis holds; a parameter that was a
//            part of a whole before it was sharded (a column slice, say) is given whole to load_full_parameters(), and
//            refused by for_each_full_parameter().
// Gathered   groups that are gathered are resharded first.
// Writing    shards may lie in memory that peers read: the two that load wait until every peer of the shard axes has
//            come, and are collective for that reason.
// Threads    the rank's host thread.
#pragma once

#include <functional>
#include <string>

#include "engine/nn/module.h"
#include "engine/nn/state_dict.h"

namespace loom::sharding {

// Gathers one whole parameter after another, in its original dtype, and hands it over as a host tensor. Collective;
// `visit` runs on every rank. Parameters of modules that are not wrapped are handed over as they are. ConfigError, on
// all ranks alike, for a parameter of which the ranks of the shard axis have a part only. `wanted`: those it is asked
// of by path, the same on every rank; none: all.
void for_each_full_parameter(nn::Module& root,
                             const std::function<void(const std::string& path, const Tensor& full)>& visit,
                             const std::function<bool(const std::string& path)>& wanted = nullptr);

// The other way: every rank takes its box of the whole parameters `full` gives by path (host tensors of any floating
// dtype), whatever number of ranks they came from. Collective.
void load_full_parameters(nn::Module& root, const std::function<Tensor(const std::string& path)>& full);

// nn::state_dict() of the shards, whatever state the groups are in. Not collective.
nn::StateDict local_state_dict(nn::Module& root);

// nn::load_state_dict() into the shards, whatever state the groups are in. Collective.
void load_local_state_dict(nn::Module& root, const nn::StateDict& saved);

}  // namespace loom::sharding
