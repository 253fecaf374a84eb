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

}  // namespace

ordered_json configuration_json(const train::TrainArguments& arguments, const ReportOptions& options,
                                const std::vector<std::pair<std::string, fs::path>>& more) {
  std::vector<std::pair<std::string, fs::path>> files;
  if (arguments.fsdp2_config_path) files.emplace_back("--fsdp2-config-path", *arguments.fsdp2_config_path);
  if (arguments.model_config) files.emplace_back("--model-config", *arguments.model_config);
  if (arguments.init_from_hf_path) {
    files.emplace_back("--init-from-hf-path", *arguments.init_from_hf_path / "config.json");
  }
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
