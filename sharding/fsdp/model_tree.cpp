#include "sharding/fsdp/model_tree.h"

#include <set>

#include "engine/nn/absent.h"
#include "engine/nn/path_aliases.h"

namespace loom::sharding {

bool is_elsewhere(const nn::Module& root, std::string_view path) {
  for (std::size_t end = path.find('.');; end = path.find('.', end + 1)) {
    const nn::Module* module = root.find(path.substr(0, end));
    if (module != nullptr && nn::is_absent(*module)) return true;
    if (module == nullptr || end == std::string_view::npos) return false;
  }
}

bool ModelTree::exists(std::string_view path) const { return root_.find(path) != nullptr || is_elsewhere(root_, path); }

std::optional<std::string> ModelTree::real_path(std::string_view path) const {
  if (auto real = nn::resolve_path(root_, path)) return real;
  return is_elsewhere(root_, path) ? std::optional<std::string>(path) : std::nullopt;
}

std::optional<int> ModelTree::container_size(std::string_view path) const {
  const nn::Module* module = root_.find(path);
  if (module == nullptr || module->has_forward()) return std::nullopt;
  return static_cast<int>(module->children().size());
}

std::vector<std::string> ModelTree::paths_of_class(std::string_view name) const {
  std::vector<std::string> paths;
  for (auto& [path, module] : root_.named_modules()) {
    if (!path.empty() && module->type_name() == name) paths.push_back(path);
  }
  return paths;
}

std::vector<std::string> ModelTree::known_classes() const {
  std::set<std::string> classes;
  for (auto& [path, module] : root_.named_modules()) {
    if (!path.empty()) classes.emplace(module->type_name());
  }
  return {classes.begin(), classes.end()};
}

std::vector<std::string> ModelTree::known_paths() const {
  std::vector<std::string> paths;
  for (auto& [path, module] : root_.named_modules()) {
    if (!path.empty()) paths.push_back(path);
  }
  for (const nn::PathAlias& entry : nn::path_aliases(root_)) {
    if (root_.find(entry.path) != nullptr) paths.push_back(entry.alias);
  }
  return paths;
}

}  // namespace loom::sharding
