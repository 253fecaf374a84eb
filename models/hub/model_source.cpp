#include "models/hub/model_source.h"

namespace loom::models {

std::optional<std::filesystem::path> model_path(const ModelOptions& options) {
  return options.init_from_hf_path ? options.init_from_hf_path : options.model_config;
}

bool has_configuration(const ModelOptions& options) { return options.made_config || model_path(options); }

ConfigReader configuration_of(const ModelOptions& options) {
  const auto path = model_path(options);
  if (path) return ConfigReader::load(*path);
  return ConfigReader::from_json(options.made_config.value(),
                                 options.mm_model ? options.mm_model->string() : "the model's flags");
}

}  // namespace loom::models
