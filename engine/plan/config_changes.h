// What searches change of a configuration. Private to engine/plan.
#pragma once

#include <vector>

#include "sharding/config/fsdp2_config.h"

namespace loom::plan {

// The modules that a search recomputes: those of the file, else the containers that it wraps.
std::vector<sharding::ModulePattern> recomputable(const sharding::Fsdp2Config& config);

}  // namespace loom::plan
