// Value types common to several keys of fsdp2_config.yaml. Private to sharding.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/value.h"
#include "sharding/config/module_pattern.h"
#include "sharding/reshard_after_forward.h"

namespace loom::sharding {

// Refuses `value`: "...; use ALLOWED", or advises to remove the key, since every key has a default.
[[noreturn]] void refuse_value(const config::Value& value, std::string_view allowed);

// A whole number that fits an int.
std::optional<int> whole(const config::Value& value);
ReshardAfterForward read_reshard(const config::Value& value);

// One entry of the list under `key`, counted from 0.
ModulePattern read_pattern(const config::Value& item, std::string_view key, std::size_t index);
// ConfigError for a value that is not a list of patterns.
std::vector<ModulePattern> read_patterns(const config::Value& list);

// The form in a file: patterns with braces are quoted, since braces begin a mapping in YAML.
std::string quoted_text(const ModulePattern& pattern);
std::string text_of(const std::vector<ModulePattern>& patterns);

}  // namespace loom::sharding
