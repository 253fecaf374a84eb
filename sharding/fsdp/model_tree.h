// ModelTree: a model's module tree as module patterns see it. Private to sharding.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/nn/module.h"
#include "sharding/config/module_pattern.h"

namespace loom::sharding {

// Whether the module at `path` is, or lies in one that is, on another stage of a pipeline (nn::Absent).
bool is_elsewhere(const nn::Module& root, std::string_view path);

// What is elsewhere exists. Keeps a reference to the model.
class ModelTree final : public ModuleTreeView {
 public:
  explicit ModelTree(nn::Module& root) : root_(root) {}

  bool exists(std::string_view path) const override;
  // Through the aliases that the model declares (engine/nn/path_aliases.h).
  std::optional<std::string> real_path(std::string_view path) const override;
  std::optional<int> container_size(std::string_view path) const override;
  std::vector<std::string> paths_of_class(std::string_view name) const override;
  std::vector<std::string> known_classes() const override;
  std::vector<std::string> known_paths() const override;

 private:
  nn::Module& root_;
};

}  // namespace loom::sharding
