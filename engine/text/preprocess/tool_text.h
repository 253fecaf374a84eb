// Tools and calls of them as text: what a template's tool and function formats show. Private to engine/text.
//
// JSON     as Python's json.dumps(ensure_ascii=False) writes it: ", " and ": ", keys in their order.
// Errors   ConfigError with the record's place for text that is no JSON of the shape.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace loom::data {

std::string python_json(const nlohmann::ordered_json& json);

// What stands behind the system text: each tool with its arguments, and how a call is written. `tools` is a JSON list
// of objects with name, description and parameters, or of such functions in OpenAI's wrapping; nothing for an empty
// list.
std::string tools_text(std::string_view tools, const std::string& where);

struct FunctionCall {
  std::string name;
  std::string arguments;  // JSON
};

// {"name": NAME, "arguments": ANY}
FunctionCall parse_function_call(std::string_view text, const std::string& where);

}  // namespace loom::data
