#include "engine/text/preprocess/tool_text.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostLevels = 64;

Json parse(std::string_view text, std::string_view what, const std::string& where) {
  int depth = 0;
  const auto within_limits = [&](int level, Json::parse_event_t, Json&) {
    depth = std::max(depth, level);
    return level <= kMostLevels;
  };
  Json json = Json::parse(text, within_limits, false);
  if (depth > kMostLevels) config_error("{}: {} nests deeper than {} levels", where, what, kMostLevels);
  if (json.is_discarded()) config_error("{}: {} is no JSON: '{}'; write JSON", where, what, shown_text(text));
  return json;
}

std::string text_member(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

bool is_required(const Json& parameters, const std::string& name) {
  const auto list = parameters.find("required");
  if (list == parameters.end() || !list->is_array()) return false;
  return std::ranges::find(*list, Json(name)) != list->end();
}

std::string argument_line(const std::string& name, const Json& argument, bool required) {
  std::string line = fmt::format("  - {} ({}{}): {}", name, text_member(argument, "type"), required ? ", required" : "",
                                 text_member(argument, "description"));
  if (const auto choices = argument.find("enum"); choices != argument.end() && choices->is_array()) {
    std::vector<std::string> shown;
    for (const Json& choice : *choices) {
      shown.push_back(choice.is_string() ? choice.get<std::string>() : python_json(choice));
    }
    if (!shown.empty()) line += fmt::format(", should be one of [{}]", fmt::join(shown, ", "));
  }
  if (const auto items = argument.find("items"); items != argument.end() && items->is_object()) {
    line += fmt::format(", where each item should be {}", text_member(*items, "type"));
  }
  return line + "\n";
}

// An object with a name, taken out of {"type": "function", "function": {...}}.
const Json& function_of(const Json& tool, const std::string& where) {
  const Json* function = &tool;
  if (tool.is_object() && tool.contains("function")) function = &tool["function"];
  if (!function->is_object() || text_member(*function, "name").empty()) {
    config_error("{}: a tool is '{}'; use an object with name, description and parameters", where,
                 shown_text(python_json(tool)));
  }
  return *function;
}

std::string tool_lines(const Json& function, const std::string& where) {
  const std::string name = text_member(function, "name");
  std::string lines =
      fmt::format("> Tool Name: {}\nTool Description: {}\nTool Args:\n", name, text_member(function, "description"));
  const Json parameters = function.value("parameters", Json::object());
  const Json arguments = parameters.is_object() ? parameters.value("properties", Json::object()) : Json();
  if (!arguments.is_object()) {
    config_error("{}: tool '{}' has parameters that are no JSON schema; use an object with properties", where,
                 shown_text(name));
  }
  for (const auto& [argument, schema] : arguments.items()) {
    if (!schema.is_object()) {
      config_error("{}: argument '{}' of tool '{}' is no object; use one with type and description", where,
                   shown_text(argument), shown_text(name));
    }
    lines += argument_line(argument, schema, is_required(parameters, argument));
  }
  return lines + "\n";
}

void append_json(const Json& json, std::string& text);

template <class Range, class Write>
void append_list(const Range& range, std::string_view brackets, std::string& text, Write&& write) {
  text += brackets[0];
  bool first = true;
  for (const auto& item : range) {
    if (!first) text += ", ";
    first = false;
    write(item);
  }
  text += brackets[1];
}

std::string compact(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

void append_json(const Json& json, std::string& text) {
  if (json.is_array()) {
    append_list(json, "[]", text, [&](const Json& item) { append_json(item, text); });
  } else if (json.is_object()) {
    append_list(json.items(), "{}", text, [&](const auto& item) {
      text += compact(Json(item.key())) + ": ";
      append_json(item.value(), text);
    });
  } else {
    text += compact(json);
  }
}

}  // namespace

std::string python_json(const Json& json) {
  std::string text;
  append_json(json, text);
  return text;
}

std::string tools_text(std::string_view tools, const std::string& where) {
  const Json list = parse(tools, "the text of tools", where);
  if (!list.is_array()) config_error("{}: tools are '{}'; use a list of tools", where, shown_text(tools));
  if (list.empty()) return "";
  std::string lines;
  std::vector<std::string> names;
  for (const Json& tool : list) {
    const Json& function = function_of(tool, where);
    lines += tool_lines(function, where);
    names.push_back(text_member(function, "name"));
  }
  return fmt::format(
      "These tools can be called:\n{}To call a tool, write:\n```\nAction: the tool's name, one of [{}]\nAction Input: "
      "its arguments as a JSON object, for example {{\"text\": \"hello\", \"count\": 5}}\n```\n",
      lines, fmt::join(names, ", "));
}

FunctionCall parse_function_call(std::string_view text, const std::string& where) {
  const Json call = parse(text, "a function call", where);
  if (!call.is_object() || text_member(call, "name").empty() || !call.contains("arguments")) {
    config_error("{}: a function call is '{}'; use {{\"name\": NAME, \"arguments\": {{...}}}}", where,
                 shown_text(text));
  }
  return {call["name"].get<std::string>(), python_json(call["arguments"])};
}

}  // namespace loom::data
