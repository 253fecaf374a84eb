// Cuts a parameter down to the box that this rank has, before FSDP shards it.
#pragma once

#include "engine/nn/module.h"

namespace loom::sharding {

// Every slot of `model` that holds the parameter of `slot` keeps this box of it, of shape `box`. A parameter on the
// meta device stays there.
void cut_parameter(nn::Module& model, nn::ParamSlot& slot, const nn::ShardSpec& shard, const Shape& box);

}  // namespace loom::sharding
