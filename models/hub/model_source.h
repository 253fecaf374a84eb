// The configuration of the model that a job names: its file, or the text that flags made.
#pragma once

#include <filesystem>
#include <optional>

#include "models/hub/config_reader.h"
#include "models/hub/options.h"

namespace loom::models {

// The folder of --init-from-hf-path or the file of --model-config; none for a model of flags, or without a model.
std::optional<std::filesystem::path> model_path(const ModelOptions& options);

bool has_configuration(const ModelOptions& options);
// Precondition: has_configuration(options). Errors as ConfigReader.
ConfigReader configuration_of(const ModelOptions& options);

}  // namespace loom::models
