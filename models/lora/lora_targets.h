// The modules of a model that the names in LoraOptions select. Private to models.
#pragma once

#include <string>
#include <vector>

#include "engine/nn/module.h"
#include "models/lora/lora_options.h"

namespace loom::models {

// The paths of modules_to_save. ConfigError for a name that no module has.
std::vector<std::string> lora_modules_to_save(const nn::Module& model, const LoraOptions& options);

// The paths of target_modules, without the modules in `saved` and below. Names unknown to peft (Megatron's, "{*}")
// are replaced in `options` by peft's names, with a line in `notes`. ConfigError for a name that matches
// nothing, unless the options are from a file, and for a match that is not linear.
std::vector<std::string> lora_targets(const nn::Module& model, const std::vector<std::string>& saved,
                                      LoraOptions& options, std::vector<std::string>& notes);

}  // namespace loom::models
