#include "sharding/selected_modules.h"

#include <unordered_set>

#include "engine/core/error.h"

namespace loom::sharding {
namespace {

std::string written(const std::string& path, const WrittenAs& written_as) {
  const auto found = written_as.find(path);
  return found == written_as.end() ? path : found->second;
}

void check_containers(nn::Module& model, std::span<const ModulePattern> patterns, const ModelTree& tree) {
  for (const ModulePattern& pattern : patterns) {
    const ModuleExpansion expansion = expand(pattern, tree);
    for (const std::string& path : expansion.paths) {
      if (!is_elsewhere(model, path) && !model.find(path)->has_forward()) {
        config_error("{}: {}: '{}'{} is a {} and has no forward of its own; wrap its items: '{}.{{*}}'",
                     pattern.mark().text(), pattern.key(), path, alias_note(path, expansion.written_as),
                     model.find(path)->type_name(), written(path, expansion.written_as));
      }
    }
  }
}

}  // namespace

std::string alias_note(const std::string& path, const WrittenAs& written_as) {
  const auto found = written_as.find(path);
  return found == written_as.end() ? "" : fmt::format(" (written '{}')", found->second);
}

std::string parent_of(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? std::string() : path.substr(0, dot);
}

bool is_below(const std::string& path, const std::string& above) {
  return path.size() > above.size() && path.starts_with(above) && path[above.size()] == '.';
}

std::vector<std::string> modules_in_order(nn::Module& model, std::span<const ModulePattern> patterns,
                                          const ModelTree& tree, std::vector<std::string>& warnings,
                                          WrittenAs& written_as) {
  const ModuleExpansion expansion = expand(patterns, tree);
  written_as.insert(expansion.written_as.begin(), expansion.written_as.end());
  check_containers(model, patterns, tree);
  warnings.insert(warnings.end(), expansion.warnings.begin(), expansion.warnings.end());
  std::vector<std::string> paths = expansion.paths;
  std::erase_if(paths, [&](const std::string& path) { return is_elsewhere(model, path); });
  return paths;
}

std::vector<std::string> listed_modules(nn::Module& model, std::span<const ModulePattern> patterns,
                                        const ModelTree& tree, std::vector<std::string>& warnings,
                                        WrittenAs& written_as) {
  const std::vector<std::string> in_order = modules_in_order(model, patterns, tree, warnings, written_as);
  if (in_order.empty()) return {};
  const std::unordered_set<std::string> listed(in_order.begin(), in_order.end());
  std::vector<std::string> paths;
  for (auto& [path, module] : model.named_modules()) {
    if (listed.contains(path)) paths.push_back(path);
  }
  return paths;
}

}  // namespace loom::sharding
