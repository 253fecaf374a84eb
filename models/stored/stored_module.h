// StoredModule: a module tree from the names and shapes of stored tensors alone, without the model's code.
//
// Tree      "model.layers.0.mlp.up_proj.weight" is the parameter `weight` of the module model.layers.0.mlp.up_proj.
//           Children are in the order of their names, numbers by value. A module whose children are all numbers and
//           have children themselves is a list of blocks: it cannot be wrapped, as a ModuleList cannot.
// Tensors   of floating types are parameters; others are buffers of the model, which no rank shards, and are left out.
//           A tied parameter is stored once, and so is in the tree once.
// Forward   calls the modules in their order; each uses its own parameters, so that wrappers gather, reshard and reduce
//           them, and nothing else: no arithmetic, and no activation but one element.
// Errors    ConfigError for a folder that HfWeights refuses, and for names that are no paths, or give a module and a
//           parameter the same name.
// Threads   the rank's host thread.
#pragma once

#include <filesystem>
#include <memory>

#include "engine/nn/module.h"

namespace loom::models {

// The module of the safetensors files of a Hugging Face folder. Reads their headers.
std::shared_ptr<nn::Module> stored_module(const std::filesystem::path& folder);

}  // namespace loom::models
