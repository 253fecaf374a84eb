// PipelineRanks: attached to a model whose other stages are on other ranks. Sums over its parameters (norms.cpp) go over
// these ranks too.
#pragma once

#include <memory>

#include "engine/comm/process_group.h"

namespace loom::sharding {

struct PipelineRanks {
  std::shared_ptr<comm::ProcessGroup> stages;
};

}  // namespace loom::sharding
