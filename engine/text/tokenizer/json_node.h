// JsonNode: a value in a JSON file of Hugging Face's, with its place for messages. Private to engine/text.
//
// Limits   of a file: kMostJsonBytes, 64 levels; a key occurs once in its object.
// Errors   ConfigError "FILE: KEY is VALUE; ..." with the dotted key ("pre_tokenizer.pretokenizers[0].type").
#pragma once

#include <cstdint>
#include <filesystem>
#include <fmt/core.h>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace loom::data {

inline constexpr std::size_t kMostJsonBytes = std::size_t{256} << 20U;

nlohmann::json parse_json_text(std::string_view text, const std::string& file);
nlohmann::json parse_json_file(const std::filesystem::path& path);

class JsonNode {
 public:
  // `file` and `json` outlive the node.
  JsonNode(const nlohmann::json& json, const std::string& file) : JsonNode(json, file, "") {}

  const nlohmann::json& json() const { return *json_; }
  const std::string& file() const { return *file_; }

  bool is_text() const { return json_->is_string(); }
  bool is_object() const { return json_->is_object(); }
  bool is_list() const { return json_->is_array(); }

  // --- members of an object; null counts as absent ---
  std::optional<JsonNode> find(std::string_view key) const;
  JsonNode at(std::string_view key) const;
  std::string type() const;
  std::string text(std::string_view key) const;
  bool flag(std::string_view key, bool fallback) const;
  // Refuses members that are none of `keys`.
  void allow_only(std::initializer_list<std::string_view> keys) const;

  // --- this value; refused if of another type ---
  const std::string& as_text() const;
  bool as_flag() const;
  std::int64_t as_integer(std::int64_t least, std::int64_t most) const;
  std::vector<JsonNode> as_list() const;
  void expect_object() const;

  // Throws "FILE: KEY is VALUE; MESSAGE".
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    refuse_with(fmt::format(format, std::forward<Args>(args)...));
  }
  // "FILE: KEY"
  std::string where() const;

 private:
  JsonNode(const nlohmann::json& json, const std::string& file, std::string path)
      : json_(&json), file_(&file), path_(std::move(path)) {}
  [[noreturn]] void refuse_with(const std::string& message) const;
  std::string path_of(std::string_view key) const;

  const nlohmann::json* json_;
  const std::string* file_;
  std::string path_;
};

}  // namespace loom::data
