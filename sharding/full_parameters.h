// Full parameters: assembles the shards of a wrapped module to whole parameters, and back; and returns the shards as a
// state dict.
//
// Boxes      shards go by nn::ShardSpec. Only the part on one shard axis is assembled here; a parameter that was a
//            part of a whole before it was sharded (a column slice, say) is passed whole to load_full_parameters(), and
//            refused by for_each_full_parameter().
// Gathered   groups that are gathered are resharded first.
// Writing    shards may be in memory that peers read: the two that load wait until every peer of the shard axes has
//            arrived, and are collective for that reason.
// Threads    the rank's host thread.
#pragma once

#include <functional>
#include <string>

#include "engine/nn/module.h"
#include "engine/nn/state_dict.h"

namespace loom::sharding {

// Gathers one whole parameter after another, in its original dtype, and passes it on as a host tensor. Collective;
// `visit` runs on every rank. Parameters of modules that are not wrapped are passed on unchanged. ConfigError, on
// all ranks alike, for a parameter of which the ranks of the shard axis have only a part. `wanted` selects parameters
// by path, the same on every rank; none: all.
void for_each_full_parameter(nn::Module& root,
                             const std::function<void(const std::string& path, const Tensor& full)>& visit,
                             const std::function<bool(const std::string& path)>& wanted = nullptr);

// The inverse: every rank takes its box of the whole parameters that `full` returns by path (host tensors of any
// floating dtype), whatever number of ranks they came from. Collective.
void load_full_parameters(nn::Module& root, const std::function<Tensor(const std::string& path)>& full);

// nn::state_dict() of the shards, in any state of the groups. Not collective.
nn::StateDict local_state_dict(nn::Module& root);

// nn::load_state_dict() into the shards, in any state of the groups. Collective.
void load_local_state_dict(nn::Module& root, const nn::StateDict& saved);

}  // namespace loom::sharding
