// effective_config: the effect of a configuration file on this rank, key by key, and the agreement of all ranks on it.
//
// Compared  the effect, not the spelling: sharding_size auto on 4 ranks is 4, and layers.{*} is the paths it matches.
// Cost      one 8-byte exchange over the world before groups are made; texts are exchanged only when digests differ.
// Errors    ConfigError, the same text on every rank of the world:
//             ranks differ in fsdp2_config.yaml: sharding_size: ranks 0-2 have 4, rank 3 has 2; sub_modules_to_wrap:
//             ranks 0-2 list 'layers.3', rank 3 does not; give every rank the same file and model
//           If a rank does not come, the process group's error ends the others, after its deadline at the latest.
#pragma once

#include <string>
#include <vector>

#include "engine/comm/process_group.h"
#include "sharding/config/fsdp2_config.h"

namespace loom::sharding {

struct ResolvedFsdp2Config;

// The value of a key, or one item of a key that is a list.
struct ConfigEntry {
  std::string key;
  std::string value;
  bool is_item = false;
};

// Every key of the file, in the order of Fsdp2Config. `resolved` is complete except for its own entries.
std::vector<ConfigEntry> effective_config(const Fsdp2Config& config, const ResolvedFsdp2Config& resolved);

// Collective over `everyone`.
void check_same_config(const std::vector<ConfigEntry>& entries, comm::ProcessGroup& everyone);

}  // namespace loom::sharding
