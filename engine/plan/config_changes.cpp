#include "engine/plan/config_changes.h"

namespace loom::plan {

std::vector<sharding::ModulePattern> recomputable(const sharding::Fsdp2Config& config) {
  if (!config.recompute_modules.empty()) return config.recompute_modules;
  std::vector<sharding::ModulePattern> containers;
  for (sharding::ModulePattern& pattern : sharding::patterns_of(config.sub_modules_to_wrap)) {
    if (pattern.kind() != sharding::ModulePattern::Kind::kPath) containers.push_back(std::move(pattern));
  }
  return containers;
}

}  // namespace loom::plan
