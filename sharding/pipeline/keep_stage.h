// Cuts a model down to one stage of a pipeline: what other stages have becomes nn::Absent. Paths do not change.
//
// Ties     a parameter of the embedding that the output part holds too stays on the last stage, as a copy under its
//          path; the gradients of both are added, so that they stay alike.
// Errors   ConfigError, with nothing changed, for a model without PipelineParts, or with another tie between stages.
// Threads  the rank's host thread, before the model is recomputed, swapped or sharded.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/nn/module.h"
#include "sharding/pipeline/pipeline_parts.h"
#include "sharding/pipeline/stage_layout.h"

namespace loom::sharding {

// ConfigError for a model that cannot be cut into stages.
const PipelineParts& pipeline_parts(const nn::Module& model);
std::int64_t pipeline_layers(const nn::Module& model);

void keep_stage(nn::Module& model, const StageLayout& stage);

// The slots that stages have in common, by path: on the first and on the last stage, the same on every rank that has
// them; empty without ties. Of a model that keep_stage() has cut.
std::vector<std::pair<std::string, nn::ParamSlot*>> shared_slots(nn::Module& model);

}  // namespace loom::sharding
