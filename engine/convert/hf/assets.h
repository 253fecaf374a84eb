// Assets: the files of a model's folder that describe the weights to be written: config.json, and
// the index or the weights themselves, if present. Private to engine/convert.
//
// Errors   ConfigError for a folder without config.json, and for invalid files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/value.h"
#include "engine/convert/convert.h"

namespace loom::checkpoint {

class Assets {
 public:
  // `flag` begins the messages.
  explicit Assets(std::filesystem::path folder, const std::string& flag = "--model-assets-dir");

  // The origin of the names, for messages.
  std::string wanted_by() const;
  // The names of all weights; none if the folder has neither an index nor model.safetensors.
  const std::optional<std::vector<std::string>>& names() const { return names_; }
  // The file of each name; empty without an index.
  const std::map<std::string, std::string>& files() const { return files_; }
  // tie_word_embeddings, which defaults to true for GPT-2; none if config.json of another family does not have it.
  std::optional<bool> ties_embeddings() const;
  // Experts of a layer; none if config.json does not have them.
  std::optional<std::int64_t> experts() const;

  // model_type; empty if config.json does not have it.
  std::string model_type() const;

  // Writes config.json, with the dtype of the weights if it changed and, with `untied`, without its tie; and the
  // other files of the model that training does not change.
  void carry_to(const std::filesystem::path& folder, std::optional<DType> main_dtype, bool untied = false) const;

 private:
  // A key of config.json, or of its text_config or llm_config; null if neither has it.
  const config::Value* find(std::string_view key) const;

  std::filesystem::path folder_;
  std::string config_text_;
  config::Value config_;
  std::optional<std::vector<std::string>> names_;
  std::map<std::string, std::string> files_;
};

}  // namespace loom::checkpoint
