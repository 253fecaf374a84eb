#include "engine/text/template/chat_template.h"

#include <algorithm>
#include <utility>

#include "engine/core/is_there.h"
#include "engine/core/shown_text.h"
#include "engine/io/mapped_file.h"
#include "engine/text/template/jinja/interpreter.h"
#include "engine/text/template/jinja/json.h"
#include "engine/text/template/jinja/parser.h"
#include "engine/text/tokenizer/json_node.h"

namespace loom::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::size_t kMostTemplateBytes = std::size_t{1} << 20U;
constexpr std::string_view kTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
// Names under which a message has its reasoning; templates read the first.
constexpr std::string_view kReasoning[] = {"reasoning_content", "thinking", "reasoning"};

struct LoadedTemplate {
  std::string name;  // of the file, for messages
  jinja::Body body;
};

LoadedTemplate compiled_template(std::string_view text, const std::string& name) {
  if (text.size() > kMostTemplateBytes) {
    config_error("{}: the template has {} bytes; at most {} are read", name, text.size(), kMostTemplateBytes);
  }
  if (const auto at = invalid_utf8(text)) config_error("{}: byte {} is no UTF-8; save the file as UTF-8", name, *at);
  try {
    return {name, jinja::parse(text)};
  } catch (const jinja::SyntaxError& error) {
    config_error("{}:{}: {}", name, error.line, error.what());
  }
}

LoadedTemplate read_template_file(const fs::path& path) {
  const io::MappedFile file(path);
  const auto bytes = file.bytes();
  return compiled_template({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

using Templates = std::map<std::string, LoadedTemplate, std::less<>>;

Templates templates_of_files(const fs::path& folder) {
  Templates templates;
  templates.emplace("default", read_template_file(folder / "chat_template.jinja"));
  const fs::path more = folder / "additional_chat_templates";
  if (!is_there(more)) return templates;
  for (const auto& entry : fs::directory_iterator(more)) {
    if (entry.path().extension() != ".jinja") continue;
    templates.emplace(entry.path().stem().string(), read_template_file(entry.path()));
  }
  return templates;
}

Templates templates_of_config(const JsonNode& config) {
  Templates templates;
  const auto given = config.find("chat_template");
  if (!given) return templates;
  if (!given->is_list()) {
    templates.emplace("default", compiled_template(given->as_text(), given->where()));
    return templates;
  }
  for (const JsonNode& each : given->as_list()) {
    const JsonNode text = each.at("template");
    const std::string name = each.text("name");
    if (!templates.emplace(name, compiled_template(text.as_text(), text.where())).second) {
      each.at("name").refuse("a template before has this name; keep one");
    }
  }
  return templates;
}

std::optional<std::string> token_of(const JsonNode& config, std::string_view name) {
  const auto given = config.find(name);
  if (!given) return std::nullopt;
  return given->is_object() ? given->text("content") : given->as_text();
}

nlohmann::json tokenizer_config(const fs::path& folder) {
  const fs::path file = folder / "tokenizer_config.json";
  return is_there(file) ? parse_json_file(file) : nlohmann::json::object();
}

TokenTexts tokens_of(const JsonNode& config) {
  TokenTexts tokens;
  for (const std::string_view name : kTokens) {
    if (auto token = token_of(config, name)) tokens.emplace(name, *std::move(token));
  }
  return tokens;
}

void expect_objects(const Json& list, std::string_view what) {
  if (!list.is_array()) config_error("{}: found {} where a list of objects is expected", what, list.type_name());
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_object()) {
      config_error("{}[{}]: found {} where an object is expected", what, i, list[i].type_name());
    }
  }
}

// {"thinking": R, **message, "reasoning_content": R}
Json with_reasoning(const Json& message) {
  for (const std::string_view name : kReasoning) {
    const auto found = message.find(name);
    if (found == message.end() || found->is_null()) continue;
    Json aliased = {{"thinking", *found}};
    for (const auto& [key, value] : message.items()) aliased[key] = value;
    aliased["reasoning_content"] = *found;
    return aliased;
  }
  return message;
}

std::tm local_now() {
  const std::time_t now = std::time(nullptr);
  std::tm time{};
  localtime_r(&now, &time);
  return time;
}

}  // namespace

struct ChatTemplate::Parts {
  Templates templates;
  TokenTexts tokens;

  const LoadedTemplate& chosen(bool with_tools) const {
    const auto tool_use = with_tools ? templates.find("tool_use") : templates.end();
    return tool_use != templates.end() ? tool_use->second : templates.find("default")->second;
  }
};

ChatTemplate::ChatTemplate(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}

ChatTemplate ChatTemplate::from_text(std::string_view text, const std::string& name, const TokenTexts& tokens) {
  auto parts = std::make_shared<Parts>();
  parts->tokens = tokens;
  parts->templates.emplace("default", compiled_template(text, name));
  return ChatTemplate(std::move(parts));
}

ChatTemplate ChatTemplate::from_folder(const fs::path& folder) {
  auto parts = std::make_shared<Parts>();
  const std::string config_name = (folder / "tokenizer_config.json").string();
  const auto json = tokenizer_config(folder);
  const JsonNode config(json, config_name);
  parts->templates =
      is_there(folder / "chat_template.jinja") ? templates_of_files(folder) : templates_of_config(config);
  if (parts->templates.empty()) {
    config_error(
        "{}: there is no chat template, neither as chat_template.jinja nor as chat_template of tokenizer_config.json; "
        "give the folder of a model that was trained on conversations",
        escaped(folder.string()));
  }
  if (!parts->templates.contains("default")) {
    config_error("{}: chat_template has no template named 'default'; name one so", config_name);
  }
  parts->tokens = tokens_of(config);
  return ChatTemplate(std::move(parts));
}

ChatTemplate ChatTemplate::from_file(const fs::path& file, const fs::path& folder) {
  auto parts = std::make_shared<Parts>();
  const std::string config_name = (folder / "tokenizer_config.json").string();
  const auto json = tokenizer_config(folder);
  parts->tokens = tokens_of(JsonNode(json, config_name));
  parts->templates.emplace("default", read_template_file(file));
  return ChatTemplate(std::move(parts));
}

bool ChatTemplate::is_in(const fs::path& folder) {
  if (is_there(folder / "chat_template.jinja")) return true;
  const auto json = tokenizer_config(folder);
  return json.is_object() && json.contains("chat_template");
}

std::optional<std::string> ChatTemplate::token(std::string_view name) const {
  const auto found = parts_->tokens.find(name);
  return found == parts_->tokens.end() ? std::nullopt : std::optional(found->second);
}

std::string ChatTemplate::render(const Json& messages, const ChatOptions& options) const {
  expect_objects(messages, "messages");
  if (!options.tools.is_null()) expect_objects(options.tools, "tools");
  if (!options.documents.is_null()) expect_objects(options.documents, "documents");
  const LoadedTemplate& used = parts_->chosen(!options.tools.is_null());
  jinja::Interpreter interpreter({options.most_work, options.most_output_bytes},
                                 [&] { return options.now ? *options.now : local_now(); });
  try {
    Json aliased = Json::array();
    for (const Json& message : messages) aliased.push_back(with_reasoning(message));
    for (const auto& [name, text] : parts_->tokens) interpreter.set(name, jinja::value_of(text));
    interpreter.set("messages", jinja::value_of(aliased));
    interpreter.set("tools", jinja::value_of(options.tools));
    interpreter.set("documents", jinja::value_of(options.documents));
    interpreter.set("add_generation_prompt", options.add_generation_prompt);
    for (const auto& [name, value] : options.variables.items()) interpreter.set(name, jinja::value_of(value));
    return interpreter.render(used.body);
  } catch (const jinja::TemplateRefusal& refusal) {
    throw ChatRefusal(fmt::format("{}:{}: the template refuses this conversation: {}", used.name, interpreter.line(),
                                  shown_text(refusal.what())),
                      refusal.what());
  } catch (const jinja::TemplateError& error) {
    config_error("{}:{}: {}", used.name, interpreter.line(), error.what());
  }
}

}  // namespace loom::data
