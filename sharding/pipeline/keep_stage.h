// Cuts a model down to one stage of a pipeline: what other stages have becomes nn::Absent. Paths do not change.
//
// Ties     a parameter of the embedding that the output part holds too stays on the last stage, as a copy under its
//          path; the gradients of both are added, so that they stay alike.
// Errors   ConfigError, with nothing changed, for a model without PipelineParts, or with another tie between stages.
// Threads  the rank's host thread, before the model is recomputed, swapped or sharded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/nn/module.h"
#include "sharding/pipeline/pipeline_parts.h"
#include "sharding/pipeline/stage_layout.h"

namespace loom::sharding {

// ConfigError for a model that cannot be cut into stages.
const PipelineParts& pipeline_parts(const nn::Module& model);
std::int64_t pipeline_layers(const nn::Module& model);

void keep_stage(nn::Module& model, const StageLayout& stage);

// A parameter that the first and the last stage have.
struct SharedSlot {
  std::string path;       // of the embedding
  std::string tied_path;  // of the output part
  nn::ParamSlot* slot = nullptr;
};
// Of a model that keep_stage() has cut; the same on every rank that has some, empty without ties.
std::vector<SharedSlot> shared_slots(nn::Module& model);

}  // namespace loom::sharding
