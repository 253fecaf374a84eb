#include "sharding/config/effective_config.h"

#include "engine/comm/same_entries.h"
#include "sharding/config/fsdp2_keys.h"
#include "sharding/parallelize.h"

namespace loom::sharding {

std::vector<ConfigEntry> effective_config(const Fsdp2Config& config, const ResolvedFsdp2Config& resolved) {
  std::vector<std::string> wrapped, recomputed, chunked, offloaded = resolved.offloaded;
  for (const WrappedGroup& group : resolved.groups) wrapped.push_back(text_of(group));
  for (const RecomputedModule& module : resolved.recomputed) recomputed.push_back(text_of(module));
  for (const nn::ChunkMbsOptions& module : resolved.chunked) chunked.push_back(module.path);
  for (const SwappedModule& module : resolved.swapped) {
    if (module.leaves) offloaded.push_back(module.path + " (all it saves)");
  }
  const Fsdp2Effects effects{config,           resolved.layout, wrapped,   resolved.hook_modules,
                             resolved.ignored, recomputed,      offloaded, chunked};
  std::vector<ConfigEntry> entries;
  for (const Fsdp2Key& key : fsdp2_keys()) {
    for (std::string& value : key.effect(effects)) {
      entries.push_back({std::string(key.name), std::move(value), key.lists_modules});
    }
  }
  return entries;
}

void check_same_config(const std::vector<ConfigEntry>& entries, comm::ProcessGroup& everyone) {
  std::vector<comm::SaidEntry> said;
  for (const ConfigEntry& entry : entries) said.push_back({entry.key, entry.value, entry.is_item});
  comm::check_same_entries(said, everyone,
                           {.tag = "agreement on fsdp2_config.yaml",
                            .differ = "ranks differ in fsdp2_config.yaml",
                            .advice = "give every rank the same file and model"});
}

}  // namespace loom::sharding
