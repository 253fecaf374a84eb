// Cuts a parameter down to the box that this rank has, before FSDP shards it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/nn/module.h"

namespace loom::sharding {

using NamedSlots = std::vector<std::pair<std::string, nn::ParamSlot*>>;

// Every one of `slots`, those of a model, that holds the parameter of `slot` keeps this box of it, of shape `box`. A
// parameter on the meta device stays there.
void cut_parameter(const NamedSlots& slots, const nn::ParamSlot& slot, const nn::ShardSpec& shard, const Shape& box);

}  // namespace loom::sharding
