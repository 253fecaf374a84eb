#include "engine/observe/report_configuration.h"

#include <cerrno>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

#include "engine/core/error.h"

namespace loom::observe {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file)
    config_error("{}: cannot read it for the report: {}", path.string(), std::generic_category().message(errno));
  return {std::istreambuf_iterator<char>(file), {}};
}

// A model's configuration is a file, or a folder with one.
fs::path configuration_file(const fs::path& given) {
  std::error_code error;
  return fs::is_directory(given, error) ? given / "config.json" : given;
}

}  // namespace

ordered_json configuration_json(const models::ModelOptions& model_options, const train::ParallelOptions& parallel,
                                const ReportOptions& options,
                                const std::vector<std::pair<std::string, fs::path>>& more) {
  std::vector<std::pair<std::string, fs::path>> files;
  if (parallel.fsdp2_config_path) files.emplace_back("--fsdp2-config-path", *parallel.fsdp2_config_path);
  for (const auto& [name, given] : {std::pair("--model-config", model_options.model_config),
                                    {"--init-from-hf-path", model_options.init_from_hf_path}}) {
    if (given) files.emplace_back(name, configuration_file(*given));
  }
  if (model_options.mm_model) files.emplace_back("--mm-model", *model_options.mm_model);
  files.insert(files.end(), more.begin(), more.end());
  ordered_json json;
  json["command"] = options.command_line;
  json["files"] = ordered_json::array();
  for (const auto& [name, path] : files) {
    json["files"].push_back({{"name", name}, {"path", path.string()}, {"text", text_of(path)}});
  }
  return json;
}

}  // namespace loom::observe
