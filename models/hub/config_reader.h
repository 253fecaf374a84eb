// ConfigReader: a model's configuration, as typed look-ups in one mapping of a JSON or YAML file.
//
// A look-up notes its key: the keys nobody asked for are the unknown ones (refuse_unread). null counts as absent.
//
// Errors   ConfigError "file: key is VALUE; ..." (JSON) or "file:line:column: key is VALUE; ..." (YAML). Nested keys
//          are dotted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/error.h"

namespace loom::models {

class ConfigReader {
 public:
  static ConfigReader from_json(std::string_view text, std::string_view file_name);
  static ConfigReader from_yaml(std::string_view text, std::string_view file_name);

  // A folder's config.json, a .json file, or a .yaml/.yml file.
  static ConfigReader load(const std::filesystem::path& path);

  // YAML is ours: unknown keys are errors there. JSON is Hugging Face's: it may hold more than we read.
  bool strict() const { return strict_; }
  bool has(std::string_view key) const;

  // Required, >= 1.
  std::int64_t count(std::string_view key) const;
  std::int64_t count(std::string_view key, std::int64_t fallback) const;
  std::optional<std::int64_t> integer(std::string_view key) const;
  // One integer or a list of them; empty when absent.
  std::vector<std::int64_t> integers(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  // Finite and > 0.
  double positive(std::string_view key, double fallback) const;
  bool flag(std::string_view key, bool fallback) const;
  std::string text(std::string_view key) const;
  std::string text(std::string_view key, std::string_view fallback) const;
  std::vector<std::string> texts(std::string_view key) const;
  // A nested mapping.
  std::optional<ConfigReader> mapping(std::string_view key) const;

  // Throws ConfigError "WHERE: key is VALUE; MESSAGE".
  template <class... Args>
  [[noreturn]] void reject(std::string_view key, fmt::format_string<Args...> format, Args&&... args) const {
    reject_value(key, fmt::format(format, std::forward<Args>(args)...));
  }
  // The mapping as JSON, keys in the file's order.
  std::string json() const;
  // "file:line:column" of a key, or "file".
  std::string where(std::string_view key) const;
  // Throws for the first key nobody asked for, with the nearest spelling of those that were.
  void refuse_unread() const;

 private:
  struct Mark {
    int line = 0;
    int column = 0;
  };
  using Marks = std::map<std::string, Mark, std::less<>>;
  struct YamlToJson;

  ConfigReader(nlohmann::ordered_json values, std::string file, std::shared_ptr<const Marks> marks, std::string prefix,
               bool strict);
  [[noreturn]] void reject_value(std::string_view key, std::string_view message) const;
  [[noreturn]] void reject_missing(std::string_view key) const;
  // Null when absent; notes that the key was asked for.
  const nlohmann::ordered_json* find(std::string_view key) const;
  const nlohmann::ordered_json& required(std::string_view key) const;
  std::string dotted(std::string_view key) const { return prefix_ + std::string(key); }

  nlohmann::ordered_json values_;
  std::string file_;
  std::shared_ptr<const Marks> marks_;  // by dotted key
  std::string prefix_;
  bool strict_;
  mutable std::set<std::string, std::less<>> asked_;
};

}  // namespace loom::models
