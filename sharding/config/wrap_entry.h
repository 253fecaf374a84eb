// WrapEntry: one entry of sub_modules_to_wrap.
//
//   - "model.layers.{*}"                              every module that the pattern selects is a group of its own
//   - ["model.norm", "lm_head"]                       all modules that the patterns select are one group
//   - {modules: ["model.norm", "lm_head"], reshard_after_forward: false}
//                                                     either of the two, with its own reshard_after_forward
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sharding/config/module_pattern.h"
#include "sharding/reshard_after_forward.h"

namespace loom::config {
class Value;
}

namespace loom::sharding {

struct WrapEntry {
  std::vector<ModulePattern> modules;  // one, unless is_one_group
  bool is_one_group = false;
  std::optional<ReshardAfterForward> reshard_after_forward;  // none: the file's for all groups

  const SourceMark& mark() const { return modules.front().mark(); }
};

// ConfigError, with the place, for a value that is not a list of entries.
std::vector<WrapEntry> read_wrap_entries(const config::Value& value);
// The form in a file.
std::string text_of(const std::vector<WrapEntry>& entries);
// The patterns of all entries, in their order.
std::vector<ModulePattern> patterns_of(std::span<const WrapEntry> entries);

}  // namespace loom::sharding
