// Path aliases: other names that users have for the modules of a model.
//
// A model declares them in one table, which stays with its root module. An alias denotes a path and everything
// below it: with "text_decoder.decoder.layers" for "model.language_model.layers",
// "text_decoder.decoder.layers.3.mlp" means "model.language_model.layers.3.mlp".
//
// Order    a module that really has the path comes first; among aliases the longest that leads to a module.
// Readers  module patterns of a configuration (sharding/fsdp/model_tree.h) and names of stored tensors
//          (models/hf/hf_folder.h).
// Errors   InvariantError for an alias that is declared twice.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/nn/module.h"

namespace loom::nn {

struct PathAlias {
  std::string alias;  // "" is not one
  std::string path;
};

// Replaces the model's table.
void declare_path_aliases(Module& model, std::vector<PathAlias> table);
// Longest alias first; empty when none was declared.
const std::vector<PathAlias>& path_aliases(const Module& model);

// The real path of the module that `path` names; nothing when there is no such module.
std::optional<std::string> resolve_path(Module& model, std::string_view path);
// The other names of a real path (of a module, parameter or buffer).
std::vector<std::string> other_names(const Module& model, std::string_view path);

}  // namespace loom::nn
