#include "models/hub/config_reader.h"

#include <nlohmann/json.hpp>

#include "engine/config/document.h"
#include "engine/core/shown_text.h"
#include "engine/formats/folder_kind.h"

namespace loom::models {
namespace {

constexpr config::DocumentWords kWords{
    .unreadable = "{where}: not valid YAML ({problem})",
    .empty = "{file}: a mapping of keys to values is expected",
    .no_mapping = "{file}: a mapping of keys to values is expected",
    .repeated = "{where}: key '{path}' is given twice",
};

nlohmann::ordered_json json_of(const config::Value& value) {
  if (value.is_null()) return nullptr;
  if (value.is_scalar()) {
    if (const auto flag = value.boolean()) return *flag;
    if (const auto whole = value.whole()) return *whole;
    if (const auto number = value.number()) return *number;
    return value.scalar();
  }
  auto json = value.is_mapping() ? nlohmann::ordered_json::object() : nlohmann::ordered_json::array();
  for (const config::Value& item : value.items()) {
    if (value.is_mapping()) {
      json[item.key()] = json_of(item);
    } else {
      json.push_back(json_of(item));
    }
  }
  return json;
}

}  // namespace

ConfigReader ConfigReader::from_mapping(config::Value mapping) {
  return ConfigReader(Section(std::move(mapping), config::UnknownKeys::kMayBe));
}

ConfigReader ConfigReader::from_json(std::string_view text, std::string_view file_name) {
  return from_mapping(config::parse_json(text, file_name));
}

ConfigReader ConfigReader::from_yaml(std::string_view text, std::string_view file_name) {
  // parse_yaml() ends the text with an end of line: with its own as well, what ends too early would be marked a line
  // late.
  if (text.ends_with('\n')) text.remove_suffix(1);
  return ConfigReader(Section(config::parse_yaml(text, file_name, kWords), config::UnknownKeys::kRefused));
}

ConfigReader ConfigReader::load(const std::filesystem::path& path) {
  std::error_code unreadable;  // shows when it is read
  if (const std::string why = io::why_no_model(path); !why.empty()) config_error("{} {}", escaped(path.string()), why);
  if (std::filesystem::is_directory(path, unreadable)) return load(path / "config.json");
  const std::string extension = path.extension().string();
  if (unreadable && unreadable != std::errc::no_such_file_or_directory) {
    config_error("{}: {}; give the path of a model's configuration", escaped(path.string()), unreadable.message());
  }
  if (extension != ".json" && extension != ".yaml" && extension != ".yml") {
    config_error("{}: a model is described by a folder with config.json, a .json or a .yaml file",
                 escaped(path.string()));
  }
  const std::string text = config::read_text(path, "a folder with config.json, a .json or a .yaml file");
  return extension == ".json" ? from_json(text, path.string()) : from_yaml(text, path.string());
}

std::optional<ConfigReader> ConfigReader::mapping(std::string_view key) const {
  if (auto nested = Section::mapping(key)) return ConfigReader(*std::move(nested));
  return std::nullopt;
}

std::string ConfigReader::json() const { return json_of(value()).dump(2) + "\n"; }

}  // namespace loom::models
