// JSON as values, and values in the form of Python's json.dumps(). Private to engine/text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "engine/text/template/jinja/value.h"

namespace loom::data::jinja {

struct JsonStyle {
  bool ensure_ascii = false;
  bool indented = false;
  std::string indent;  // of one level
  std::string between_items = ", ";
  std::string behind_key = ": ";
  bool sort_keys = false;
};

// TemplateError for JSON that is no value: invalid UTF-8, whole numbers beyond 64 bits, more than kMostValueDepth
// levels.
Value value_of(const nlohmann::ordered_json& json, int level = 0);
std::string json_text(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace loom::data::jinja
