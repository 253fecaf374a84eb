// PipelineRanks: attached to a model whose other stages are on other ranks. Sums over its parameters (norms.cpp) go
// over these ranks too; a copy counts on the stage that has the original.
#pragma once

#include <memory>
#include <unordered_set>

#include "engine/comm/process_group.h"
#include "engine/nn/module.h"

namespace loom::sharding {

struct PipelineRanks {
  std::shared_ptr<comm::ProcessGroup> stages;
  std::unordered_set<const nn::ParamSlot*> copies = {};
};

}  // namespace loom::sharding
