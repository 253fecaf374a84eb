// ConfigReader: a model's configuration, as typed look-ups in one mapping of a JSON or YAML file.
//
// A look-up records its key: keys without a look-up are the unknown ones (refuse_unread). null counts as absent. The
// look-ups are config::Section's. YAML booleans are as in Python's YAML (true, yes, on; not y).
//
// Errors   ConfigError "file: key is VALUE; ..." (JSON) or "file:line:column: key is VALUE; ..." (YAML). Nested keys
//          are dotted.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include "engine/config/section.h"
#include "engine/core/error.h"

namespace loom::models {

class ConfigReader : public config::Section {
 public:
  static ConfigReader from_json(std::string_view text, std::string_view file_name);
  static ConfigReader from_yaml(std::string_view text, std::string_view file_name);

  // A mapping of keys that may have more than are read.
  static ConfigReader from_mapping(config::Value mapping);

  // A folder's config.json, a .json file, or a .yaml/.yml file.
  static ConfigReader load(const std::filesystem::path& path);

  // A nested mapping.
  std::optional<ConfigReader> mapping(std::string_view key) const;

  // The mapping as JSON, keys in the file's order.
  std::string json() const;

 private:
  explicit ConfigReader(config::Section section) : Section(std::move(section)) {}
};

}  // namespace loom::models
