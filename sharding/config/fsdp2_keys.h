// The table of the keys of fsdp2_config.yaml: one row a key, in the order of Fsdp2Config.
//
// Whatever goes through all keys - reading a file, what takes effect on a rank, what ranks compare, what the planner
// changes, the tests of the documentation - goes through this table. A new key is a member of Fsdp2Config, a row here
// and a row of docs/fsdp2-config.md.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/value.h"
#include "sharding/config/fsdp2_config.h"

namespace loom::sharding {

// A configuration beside what it comes to on a world and a model: what an effect is told from.
struct Fsdp2Effects {
  const Fsdp2Config& config;
  const WorldLayout& layout;
  const std::vector<std::string>& wrapped;     // groups that sub_modules_to_wrap makes (text_of)
  const std::vector<std::string>& hooks;       // paths of hook_modules
  const std::vector<std::string>& ignored;     // of ignored_modules
  const std::vector<std::string>& recomputed;  // of recompute_modules, and what a program adds (text_of)
  const std::vector<std::string>& offloaded;   // of activation_offload_modules
  const std::vector<std::string>& chunked;     // of chunk_mbs_modules
};

struct Fsdp2Key {
  std::string_view name;
  // Reads the key's value into its member. ConfigError when the key does not take that value.
  void (*read)(const config::Value& value, Fsdp2Config& config);
  // The member as a file would have it: "auto", "bf16", [lm_head, "model.layers.{*}"]. Two configurations have the same
  // value when this text is the same.
  std::string (*write)(const Fsdp2Config& config);
  // The member of one configuration into another.
  void (*copy)(const Fsdp2Config& from, Fsdp2Config& to);
  // What the key comes to: one text, or of a key that lists modules one for each.
  std::vector<std::string> (*effect)(const Fsdp2Effects& effects);
  bool lists_modules = false;
};

std::span<const Fsdp2Key> fsdp2_keys();
// InvariantError when there is no such key.
const Fsdp2Key& fsdp2_key(std::string_view name);

bool same_value(const Fsdp2Key& key, const Fsdp2Config& one, const Fsdp2Config& other);
// Every key has the same value; places do not count.
bool same_values(const Fsdp2Config& one, const Fsdp2Config& other);

}  // namespace loom::sharding
