// JSON of a file, as a tree: for rooms that link nlohmann_json.
//
// Limits   64 levels; keys of one object occur once.
// Errors   ConfigError that begins with the file's name.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace loom::io {

struct JsonWords {
  // For text that is not JSON; the reason follows in parentheses.
  std::string_view invalid = "not valid JSON";
  // For a repeated key of an object on the first level; {key} is the key.
  std::string_view repeated = "key '{key}' is given twice; keep one";
};

// `file` is its name, as messages show it.
nlohmann::json parse_json(std::string_view text, const std::string& file, const JsonWords& words = {});

// Objects keep their keys in the order of the text.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& file, const JsonWords& words = {});

// Adds a pair behind the others of an object, which has no such key: the object's own functions look at every key.
inline void append_pair(nlohmann::ordered_json& object, std::string key, nlohmann::ordered_json value) {
  auto& pairs =
      static_cast<nlohmann::ordered_json::object_t::Container&>(object.get_ref<nlohmann::ordered_json::object_t&>());
  pairs.emplace_back(std::move(key), std::move(value));
}

}  // namespace loom::io
