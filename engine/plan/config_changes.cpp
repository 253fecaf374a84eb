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

void set_recompute(sharding::Fsdp2Config& config, bool on) {
  const bool chosen_by_file = config.places.contains("recompute_modules");
  config.recompute_modules = on ? recomputable(config) : std::vector<sharding::ModulePattern>{};
  if (on && !chosen_by_file) config.use_reentrant = false;
}

void set_selected_recompute(sharding::Fsdp2Config& config) {
  set_recompute(config, true);
  if (!config.use_reentrant) config.recompute_keep = sharding::RecomputeKeep::kSelectedOpsNeeded;
}

void set_swapped_recompute(sharding::Fsdp2Config& config) {
  set_recompute(config, true);
  config.activation_offload_modules = config.recompute_modules;
}

}  // namespace loom::plan
