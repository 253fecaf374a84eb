// Assets: what the folder of a model says about its weights, beside which they are to be written: config.json, and the
// index or the weights themselves where it has them. Private to engine/convert.
//
// Errors   ConfigError for a folder without config.json, and for files that are none.
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

  // What messages call the origin of the names.
  std::string wanted_by() const;
  // The names of all weights; none where the folder has neither an index nor model.safetensors.
  const std::optional<std::vector<std::string>>& names() const { return names_; }
  // The file of each name; empty without an index.
  const std::map<std::string, std::string>& files() const { return files_; }
  // tie_word_embeddings, which is true for a GPT-2 that does not say; none where config.json of another does not.
  std::optional<bool> ties_embeddings() const;
  // Experts of a layer; none where config.json does not say.
  std::optional<std::int64_t> experts() const;

  // model_type; empty where config.json does not say.
  std::string model_type() const;

  // Writes config.json, with the dtype of the weights where it changed and, with `untied`, without its tie; and the
  // other files of the model that training does not change.
  void carry_to(const std::filesystem::path& folder, std::optional<DType> main_dtype, bool untied = false) const;

 private:
  // A key of config.json, or of its text_config; null where neither has it.
  const config::Value* find(std::string_view key) const;

  std::filesystem::path folder_;
  std::string config_text_;
  config::Value config_;
  std::optional<std::vector<std::string>> names_;
  std::map<std::string, std::string> files_;
};

}  // namespace loom::checkpoint
