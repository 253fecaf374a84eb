// Cuts a model down to one stage of a pipeline: what other stages have becomes nn::Absent. Paths do not change.
//
// Errors   ConfigError, with nothing changed, for a model without PipelineParts, with other layers than the layout, or
//          with one parameter on two stages.
// Threads  the rank's host thread, before the model is recomputed, swapped or sharded.
#pragma once

#include <cstdint>

#include "engine/nn/module.h"
#include "sharding/pipeline/pipeline_parts.h"
#include "sharding/pipeline/stage_layout.h"

namespace loom::sharding {

// ConfigError for a model that cannot be cut into stages.
const PipelineParts& pipeline_parts(const nn::Module& model);
std::int64_t pipeline_layers(const nn::Module& model);

void keep_stage(nn::Module& model, const StageLayout& stage);

}  // namespace loom::sharding
