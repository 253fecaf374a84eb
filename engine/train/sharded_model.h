// A model with its bytes, sharded if the run shards: the trained one and the reference. Private to engine/train.
#pragma once

#include <optional>

#include "engine/comm/process_group.h"
#include "engine/train/inputs.h"

namespace loom::train {

// Shards `model` by inputs.fsdp2_config, and fills it with `weights`, or random ones. Collective.
void shard_and_fill(nn::Module& model, const std::optional<io::HfWeights>& weights, const TrainSections& arguments,
                    const TrainingInputs& inputs, comm::World& world);

}  // namespace loom::train
