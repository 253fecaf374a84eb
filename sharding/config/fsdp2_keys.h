// The table of the keys of fsdp2_config.yaml: one row per key, in the order of Fsdp2Config.
//
// All code that goes through all keys (reading a file, the effect on a rank, the comparison of ranks, the planner's
// changes, the tests of the documentation) uses this table. A new key is a member of Fsdp2Config, a row here
// and a row of docs/fsdp2-config.md.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/value.h"
#include "sharding/config/fsdp2_config.h"

namespace loom::sharding {

// A configuration and its effect on a world and a model: the source of a key's effect.
struct Fsdp2Effects {
  const Fsdp2Config& config;
  const WorldLayout& layout;
  const std::vector<std::string>& wrapped;     // groups that sub_modules_to_wrap defines (text_of)
  const std::vector<std::string>& hooks;       // paths of hook_modules
  const std::vector<std::string>& ignored;     // of ignored_modules
  const std::vector<std::string>& recomputed;  // of recompute_modules, and a program's additions (text_of)
  const std::vector<std::string>& offloaded;   // of activation_offload_modules
  const std::vector<std::string>& chunked;     // of chunk_mbs_modules
};

struct Fsdp2Key {
  std::string_view name;
  // Reads the key's value into its member. ConfigError for a value that the key does not allow.
  void (*read)(const config::Value& value, Fsdp2Config& config);
  // The member in the form of a file: "auto", "bf16", [lm_head, "model.layers.{*}"]. Two configurations have the same
  // value if this text is the same.
  std::string (*write)(const Fsdp2Config& config);
  // Copies the member of one configuration to another.
  void (*copy)(const Fsdp2Config& from, Fsdp2Config& to);
  // The key's effect: one text, or one for each module of a key that lists modules.
  std::vector<std::string> (*effect)(const Fsdp2Effects& effects);
  bool lists_modules = false;
};

std::span<const Fsdp2Key> fsdp2_keys();
// Null if there is no such key.
const Fsdp2Key* find_fsdp2_key(std::string_view name);
// InvariantError if there is no such key.
const Fsdp2Key& fsdp2_key(std::string_view name);

bool same_value(const Fsdp2Key& key, const Fsdp2Config& one, const Fsdp2Config& other);
// Whether every key has the same value; places do not count.
bool same_values(const Fsdp2Config& one, const Fsdp2Config& other);

}  // namespace loom::sharding
