#include "engine/dialects/model_tree.h"

#include <algorithm>
#include <fmt/core.h>
#include <set>

#include "engine/config/share_folder.h"
#include "engine/core/error.h"
#include "engine/core/parse_number.h"

namespace loom::dialects {
namespace {

std::string parent_of(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string{} : std::string(path.substr(0, dot));
}

std::string_view last_of(std::string_view path) { return path.substr(path.rfind('.') + 1); }

bool is_index(std::string_view name) { return parse_number<int>(name).has_value(); }

}  // namespace

ModelTree::ModelTree(std::vector<TreeModule> modules, bool ties_output, std::vector<std::string> aliases)
    : modules_(std::move(modules)), aliases_(std::move(aliases)), ties_output_(ties_output) {}

std::filesystem::path model_file(const std::string& given) {
  std::error_code none;
  if (std::filesystem::is_directory(given, none)) return std::filesystem::path(given) / "config.json";
  try {
    return config::find_preset(given, "models", "--model-config");
  } catch (const ConfigError&) {
    return given;
  }
}

std::vector<std::string> ModelTree::classes() const {
  std::set<std::string> names;
  for (const TreeModule& module : modules_) names.insert(module.class_name);
  return {names.begin(), names.end()};
}

std::vector<std::string> ModelTree::paths_of_class(std::string_view name) const {
  std::vector<std::string> paths;
  for (const TreeModule& module : modules_) {
    if (module.class_name == name) paths.push_back(module.path);
  }
  return paths;
}

std::vector<std::string> ModelTree::children_of(std::string_view path) const {
  std::vector<std::string> names;
  for (const TreeModule& module : modules_) {
    if (parent_of(module.path) == path) names.emplace_back(last_of(module.path));
  }
  return names;
}

std::string ModelTree::layer_class() const {
  const auto layer = std::ranges::find_if(modules_, [](const TreeModule& module) {
    const bool is_layer = module.class_name.ends_with("DecoderLayer") || module.class_name.ends_with("Block");
    return is_layer && is_index(last_of(module.path));
  });
  return layer == modules_.end() ? std::string{} : layer->class_name;
}

std::string ModelTree::embedding() const {
  const auto is_of_tokens = [](const TreeModule& module) {
    return module.class_name == "Embedding" && last_of(module.path) == "embed_tokens";
  };
  auto found = std::ranges::find_if(modules_, is_of_tokens);  // a vision tower before it may embed positions
  if (found == modules_.end()) found = std::ranges::find(modules_, "Embedding", &TreeModule::class_name);
  return found == modules_.end() ? std::string{} : found->path;
}

// Beside the embedding.
std::string ModelTree::final_norm() const {
  const std::string place = parent_of(embedding());
  const auto found = std::find_if(modules_.rbegin(), modules_.rend(), [&](const TreeModule& module) {
    return module.class_name.find("Norm") != std::string::npos && parent_of(module.path) == place;
  });
  return found == modules_.rend() || place.empty() ? std::string{} : found->path;
}

std::string ModelTree::output() const {
  const auto found =
      std::ranges::find_if(modules_, [](const TreeModule& module) { return last_of(module.path) == "lm_head"; });
  return found == modules_.end() ? std::string{} : found->path;
}

std::vector<std::string> patterns_of(const std::vector<std::string>& paths, const ModelTree& model) {
  const std::set<std::string> all(paths.begin(), paths.end());
  std::vector<std::string> patterns;
  std::set<std::string> whole;  // containers whose entries are one pattern already
  for (const std::string& path : paths) {
    const std::string container = parent_of(path);
    const std::vector<std::string> entries = model.children_of(container);
    const bool is_whole =
        !container.empty() && is_index(last_of(path)) &&
        std::ranges::all_of(entries, [&](const std::string& name) { return all.contains(container + "." + name); });
    if (!is_whole) {
      patterns.push_back(path);
    } else if (whole.insert(container).second) {
      patterns.push_back(container + ".{*}");
    }
  }
  return patterns;
}

}  // namespace loom::dialects
