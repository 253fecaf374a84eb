#include "sharding/config/wrap_entry.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>

#include "engine/config/section.h"
#include "engine/core/error.h"
#include "sharding/config/key_values.h"

namespace loom::sharding {
namespace {

using config::Value;

constexpr std::string_view kKey = "sub_modules_to_wrap";
constexpr std::string_view kModules = "modules";
constexpr std::string_view kReshard = "reshard_after_forward";

WrapEntry read_group(const Value& list, std::size_t index) {
  if (list.items().empty()) {
    config_error("{}: {} has an empty list as entry {}; name the modules of the group or remove the entry",
                 list.where(), kKey, index + 1);
  }
  WrapEntry entry{.modules = {}, .is_one_group = true, .reshard_after_forward = std::nullopt};
  for (std::size_t i = 0; i < list.items().size(); ++i) {
    entry.modules.push_back(read_pattern(list.items()[i], kKey, i));
  }
  return entry;
}

WrapEntry read_modules(const Value& modules, std::size_t index) {
  if (modules.is_list()) return read_group(modules, index);
  return {
      .modules = {read_pattern(modules, kKey, index)}, .is_one_group = false, .reshard_after_forward = std::nullopt};
}

WrapEntry read_mapping(const Value& mapping, std::size_t index) {
  constexpr std::array kKnown = {kModules, kReshard};
  for (const Value& member : mapping.items()) {
    if (std::ranges::find(kKnown, member.key()) == kKnown.end()) config::refuse_key(member, kKnown);
  }
  const Value* modules = mapping.find(kModules);
  if (modules == nullptr) {
    config_error("{}: {} has a mapping without 'modules' as entry {}; write {{modules: [...], {}: false}}",
                 mapping.where(), kKey, index + 1, kReshard);
  }
  WrapEntry entry = read_modules(*modules, index);
  if (const Value* reshard = mapping.find(kReshard)) entry.reshard_after_forward = read_reshard(*reshard);
  return entry;
}

// A pattern with braces but without quotes is a mapping for YAML; its members have no values.
bool is_unquoted_pattern(const Value& item) {
  return item.is_mapping() && std::ranges::all_of(item.items(), [](const Value& member) { return member.is_null(); });
}

WrapEntry read_entry(const Value& item, std::size_t index) {
  return item.is_mapping() && !is_unquoted_pattern(item) ? read_mapping(item, index) : read_modules(item, index);
}

std::string text_of(const WrapEntry& entry) {
  const std::string modules = entry.is_one_group ? text_of(entry.modules) : quoted_text(entry.modules.front());
  if (!entry.reshard_after_forward) return modules;
  return fmt::format("{{{}: {}, {}: {}}}", kModules, modules, kReshard, entry.reshard_after_forward->text());
}

}  // namespace

std::vector<WrapEntry> read_wrap_entries(const Value& value) {
  if (!value.is_list()) refuse_value(value, "a list of module paths, each on a line of its own after '- '");
  std::vector<WrapEntry> entries;
  for (std::size_t i = 0; i < value.items().size(); ++i) entries.push_back(read_entry(value.items()[i], i));
  return entries;
}

std::string text_of(const std::vector<WrapEntry>& entries) {
  std::vector<std::string> items;
  for (const WrapEntry& entry : entries) items.push_back(text_of(entry));
  return fmt::format("[{}]", fmt::join(items, ", "));
}

std::vector<ModulePattern> patterns_of(std::span<const WrapEntry> entries) {
  std::vector<ModulePattern> patterns;
  for (const WrapEntry& entry : entries) patterns.insert(patterns.end(), entry.modules.begin(), entry.modules.end());
  return patterns;
}

}  // namespace loom::sharding
