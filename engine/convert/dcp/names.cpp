#include "engine/convert/dcp/names.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"

namespace loom::checkpoint {
namespace {

constexpr std::size_t kMostListed = 6;  // names of a kind in one message

// "a.b" is in "x.a.b.c", but not in "xa.b".
bool has_parts(std::string_view name, std::string_view parts) {
  for (std::size_t at = name.find(parts); at != std::string_view::npos; at = name.find(parts, at + 1)) {
    const std::size_t end = at + parts.size();
    if ((at == 0 || name[at - 1] == '.') && (end == name.size() || name[end] == '.')) return true;
  }
  return false;
}

// The last parts of a name, as many as `like` has: "experts.gate_up_proj".
std::string last_parts(std::string_view name, std::string_view like) {
  std::size_t begin = name.size();
  for (auto dots = std::ranges::count(like, '.') + 1; dots > 0 && begin != std::string_view::npos; --dots) {
    begin = begin == 0 ? std::string_view::npos : name.rfind('.', begin - 1);
  }
  return std::string(begin == std::string_view::npos ? name : name.substr(begin + 1));
}

std::string missing_line(const MissingName& name, const std::vector<std::string>& there) {
  const auto nearest = nearest_spelling(name.dcp_name, there);
  return fmt::format(
      "missing '{}'{}{}", shown_text(name.hf_name),
      name.hf_name == name.dcp_name ? "" : fmt::format(", which would be 'model.{}'", shown_text(name.dcp_name)),
      nearest ? fmt::format("; the nearest is 'model.{}'", shown_text(*nearest)) : "");
}

std::string counted(std::size_t count, std::string_view adjective) {
  return fmt::format("{} {} {}", count, count == 1 ? "is" : "are", adjective);
}

}  // namespace

std::string NameRules::to_dcp(std::string_view hf_name) const {
  if (hf_prefix.empty()) return dcp_prefix + std::string(hf_name);
  if (!hf_name.starts_with(hf_prefix)) return std::string(hf_name);
  return dcp_prefix + std::string(hf_name.substr(hf_prefix.size()));
}

std::optional<std::string> NameRules::to_hf(std::string_view dcp_name) const {
  const bool prefixed = dcp_name.starts_with(dcp_prefix);
  const std::string_view rest = prefixed ? dcp_name.substr(dcp_prefix.size()) : dcp_name;
  if (hf_prefix.empty()) return prefixed ? std::optional<std::string>(rest) : std::nullopt;
  if (dcp_prefix.empty()) return std::nullopt;  // with hf_prefix or without: both give it
  return prefixed ? hf_prefix + std::string(rest) : std::string(dcp_name);
}

FusedNames::FusedNames(const std::vector<std::string>& names) {
  for (const std::string& name : names) met_[name] = false;
}

bool FusedNames::has(std::string_view name) {
  bool any = false;
  for (auto& [parts, met] : met_) {
    if (!has_parts(name, parts)) continue;
    met = true;
    any = true;
  }
  return any;
}

void FusedNames::refuse_unmet(const std::string& where, const std::vector<std::string>& tensors) const {
  for (const auto& [name, met] : met_) {
    if (met) continue;
    std::vector<std::string> endings;
    for (const std::string& tensor : tensors) endings.push_back(last_parts(tensor, name));
    const auto nearest = nearest_spelling(name, endings);
    config_error("--fused-linear-names: {} has no weight of experts named '{}'{}", where, shown_text(name),
                 nearest ? fmt::format("; did you mean '{}'?", shown_text(*nearest))
                         : "; give the last parts of a tensor's name");
  }
}

void refuse_mismatch(const NameMismatch& mismatch, const std::vector<std::string>& there, const std::string& checkpoint,
                     const std::string& wanted_by) {
  const auto& [missing, unexpected] = mismatch;
  if (missing.empty() && unexpected.empty()) return;
  std::vector<std::string> counts;
  if (!missing.empty()) counts.push_back(counted(missing.size(), "missing"));
  if (!unexpected.empty()) counts.push_back(counted(unexpected.size(), "not expected"));
  std::string text = fmt::format("{}: its names do not match {}: {}", checkpoint, wanted_by, fmt::join(counts, ", "));
  for (std::size_t i = 0; i < std::min(missing.size(), kMostListed); ++i) {
    text += "\n  " + missing_line(missing[i], there);
  }
  if (missing.size() > kMostListed) text += fmt::format("\n  and {} more missing", missing.size() - kMostListed);
  for (std::size_t i = 0; i < std::min(unexpected.size(), kMostListed); ++i) {
    text += fmt::format("\n  not expected 'model.{}'", shown_text(unexpected[i]));
  }
  if (unexpected.size() > kMostListed) {
    text += fmt::format("\n  and {} more not expected", unexpected.size() - kMostListed);
  }
  throw ConfigError(text +
                    "\n  check --model-assets-dir, --dcp-prefix and --hf-prefix; two names of one tensor: "
                    "--tie-weight-mapping");
}

}  // namespace loom::checkpoint
