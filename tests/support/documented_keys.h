// Tables of keys in the documents beside the JSON that the program writes.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>

#include "tests/support/files.h"

namespace loom::test {

// The first cells of the tables below a heading ("## plan --json") of a page, as far as they are code.
inline std::set<std::string> documented_keys(const std::filesystem::path& page, const std::string& heading) {
  std::istringstream lines(read_file(page));
  std::set<std::string> keys;
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("## ")) inside = line == heading;
    const auto end = line.find("` |");
    if (inside && line.starts_with("| `") && end != std::string::npos) keys.insert(line.substr(3, end - 3));
  }
  return keys;
}

// "memory.phases[].phase": the paths of all keys in `json`, which stands at `path`; not those below `leaves`.
inline void add_keys(const nlohmann::ordered_json& json, const std::string& path, const std::set<std::string>& leaves,
                     std::set<std::string>& keys) {
  if (json.is_array()) {
    for (const auto& item : json) add_keys(item, path + "[]", leaves, keys);
  }
  if (!json.is_object()) return;
  for (const auto& [key, value] : json.items()) {
    const std::string below = path.empty() ? key : path + "." + key;
    keys.insert(below);
    if (!leaves.contains(key)) add_keys(value, below, leaves, keys);
  }
}

}  // namespace loom::test
