#include "engine/job/foreign.h"

#include <algorithm>
#include <fmt/core.h>

namespace loom::job {

bool accepts(const Key& key, std::string_view value) {
  if (key.accepted == kAnyValue) return true;
  if (key.kind == Kind::kToggle || key.accepted.empty()) return false;
  for (std::string_view rest = key.accepted;;) {
    const std::size_t bar = rest.find('|');
    if (rest.substr(0, bar) == value) return true;
    if (bar == std::string_view::npos) return false;
    rest.remove_prefix(bar + 1);
  }
}

std::string refusal(const Key& key, const std::string& value) {
  if (key.accepted.empty()) return fmt::format("{} {}", key.name(), key.advice);
  return fmt::format("{} is {}; {}", key.name(), value, key.advice);
}

std::string as_written(const Key& key, const std::string& value) {
  return key.kind == Kind::kToggle ? std::string(key.name()) : fmt::format("{} {}", key.name(), value);
}

std::optional<std::string> foreign_value(const WrittenFlags& written, std::string_view flag) {
  const auto found = std::ranges::find(written.foreign, flag, &std::pair<std::string, std::string>::first);
  return found == written.foreign.end() ? std::nullopt : std::optional(found->second);
}

std::vector<std::string> refused_foreign(const WrittenFlags& written) {
  std::vector<std::string> lines;
  for (const Key& key : foreign_keys()) {
    const auto value = foreign_value(written, key.name());
    if (value && !accepts(key, *value)) lines.push_back(refusal(key, *value));
  }
  return lines;
}

void settle_foreign(WrittenFlags& written) {
  for (const Key& key : foreign_keys()) {
    const auto value = foreign_value(written, key.name());
    if (!value || key.outcome == Outcome::kSilent) continue;
    written.without_effect.push_back(as_written(key, *value));
  }
}

}  // namespace loom::job
