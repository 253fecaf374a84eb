// What `shardloom plan` plans where no program brings its own callbacks.
#pragma once

#include "engine/train/callbacks.h"

namespace loom::plan {

// The model of --model-config or --init-from-hf-path, token ids of the right shape.
train::PretrainCallbacks plan_callbacks(const train::TrainArguments& arguments);

}  // namespace loom::plan
