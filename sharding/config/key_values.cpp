#include "sharding/config/key_values.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>

#include "engine/core/error.h"

namespace loom::sharding {

using config::Value;

void refuse_value(const Value& value, std::string_view allowed) {
  value.refuse(value.is_null() ? fmt::format("{}, or remove the key", allowed) : std::string(allowed));
}

std::optional<int> whole(const Value& value) {
  const auto number = value.whole();
  if (!number || *number < std::numeric_limits<int>::min() || *number > std::numeric_limits<int>::max()) {
    return std::nullopt;
  }
  return static_cast<int>(*number);
}

ReshardAfterForward read_reshard(const Value& value) {
  if (const auto flag = value.boolean()) return *flag;
  const auto ranks = whole(value);
  if (!ranks || *ranks < 1) refuse_value(value, "true, false or a number of ranks of at least 1");
  return *ranks;
}

ModulePattern read_pattern(const Value& item, std::string_view key, std::size_t index) {
  if (item.is_null()) {
    config_error("{}: {} has nothing at entry {}; name a module or remove the entry", item.where(), key, index + 1);
  }
  if (item.is_mapping()) {
    config_error("{}: {} has a mapping as entry {}; put a pattern with braces in quotes, as in \"layers.{{*}}\"",
                 item.where(), key, index + 1);
  }
  if (!item.is_scalar() || item.is_tagged()) {
    config_error("{}: {} has {} as entry {}; use a module path, as in \"layers.{{*}}\"", item.where(), key,
                 item.shown(), index + 1);
  }
  return ModulePattern::parse(item.scalar(), key, item.place().value);
}

std::vector<ModulePattern> read_patterns(const Value& list) {
  if (!list.is_list()) refuse_value(list, "a list of module paths, each on a line of its own after '- '");
  std::vector<ModulePattern> patterns;
  for (std::size_t i = 0; i < list.items().size(); ++i) {
    patterns.push_back(read_pattern(list.items()[i], list.key(), i));
  }
  return patterns;
}

std::string quoted_text(const ModulePattern& pattern) {
  return pattern.text().find('{') == std::string::npos ? pattern.text() : fmt::format("\"{}\"", pattern.text());
}

std::string text_of(const std::vector<ModulePattern>& patterns) {
  std::vector<std::string> items;
  std::ranges::transform(patterns, std::back_inserter(items), quoted_text);
  return fmt::format("[{}]", fmt::join(items, ", "));
}

}  // namespace loom::sharding
