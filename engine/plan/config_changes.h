// The changes that searches make to a configuration.
//
// Threads  any.
#pragma once

#include <vector>

#include "sharding/config/fsdp2_config.h"

namespace loom::plan {

// The modules that a search recomputes: the file's recompute_modules, else the containers that it wraps.
std::vector<sharding::ModulePattern> recomputable(const sharding::Fsdp2Config& config);

// Recomputes these or nothing. The recorded kind suits every module; a file that names modules names its kind too.
void set_recompute(sharding::Fsdp2Config& config, bool on);
// The same, with the results of selected operators kept; as it is where the file's kind cannot.
void set_selected_recompute(sharding::Fsdp2Config& config);
// The same, with what recompute keeps waiting on the host.
void set_swapped_recompute(sharding::Fsdp2Config& config);

}  // namespace loom::plan
