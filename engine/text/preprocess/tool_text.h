// Tools and their calls as text, for a template's tool and function formats. Private to engine/text.
//
// JSON     in the form of Python's json.dumps(ensure_ascii=False): ", " and ": ", keys in their order.
// Errors   ConfigError with the record's place for text that is not JSON of this shape.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace loom::data {

std::string python_json(const nlohmann::ordered_json& json);

// The text behind the system text: each tool with its arguments, and the form of a call. `tools` is a JSON list
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
