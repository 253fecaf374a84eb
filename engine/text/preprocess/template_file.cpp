#include "engine/text/preprocess/template_file.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <optional>
#include <set>

#include "engine/config/share_folder.h"
#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/core/spelling.h"
#include "engine/text/tokenizer/json_node.h"

namespace loom::data {
namespace {

namespace fs = std::filesystem;
using Slots = std::vector<Slot>;

struct ClassName {
  std::string_view name;
  TemplateClass value;
};
constexpr std::array<ClassName, 4> kClasses = {{{"Template", TemplateClass::kTemplate},
                                                {"Llama2Template", TemplateClass::kLlama2},
                                                {"LFDefaultTemplate", TemplateClass::kLFDefault},
                                                {"ReasoningTemplate", TemplateClass::kReasoning}}};

enum class Placeholders : std::uint8_t { kContent, kCall, kNone };

// "{{" letters, digits, '_' "}}" somewhere in the text.
bool has_placeholder(std::string_view text) {
  const auto is_word = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  for (std::size_t at = text.find("{{"); at != text.npos; at = text.find("{{", at + 1)) {
    std::size_t end = at + 2;
    while (end < text.size() && is_word(text[end])) ++end;
    if (end > at + 2 && text.substr(end, 2) == "}}") return true;
  }
  return false;
}

bool holds(const Slots& slots, std::string_view placeholder) {
  return std::ranges::any_of(slots, [&](const Slot& slot) {
    return slot.kind == Slot::Kind::kText && slot.text.find(placeholder) != std::string::npos;
  });
}

void check_placeholders(const JsonNode& list, const Slots& slots, Placeholders wanted) {
  if (wanted == Placeholders::kNone) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (slots[i].kind != Slot::Kind::kText || !has_placeholder(slots[i].text)) continue;
      list.as_list()[i].refuse("nothing is put into this format; take the placeholder out");
    }
    return;
  }
  if (holds(slots, "{{content}}")) return;
  if (wanted == Placeholders::kContent) list.refuse("no slot has {{{{content}}}}; put it at the message's place");
  if (holds(slots, "{{name}}") && holds(slots, "{{arguments}}")) return;
  list.refuse("no slot has {{{{content}}}}, and not both {{{{name}}}} and {{{{arguments}}}} are there; put them in");
}

Slot slot_of(const JsonNode& node) {
  if (node.is_text()) return {Slot::Kind::kText, node.as_text()};
  if (node.is_object()) {
    node.allow_only({"token"});
    return {Slot::Kind::kToken, node.text("token")};
  }
  if (!node.is_list()) node.refuse("use a text, [\"bos_token\"], [\"eos_token\"] or {{\"token\": TOKEN}}");
  const std::vector<JsonNode> items = node.as_list();
  if (items.size() != 1) node.refuse("{} entries are no slot; use [\"bos_token\"] or [\"eos_token\"]", items.size());
  const std::string& token = items.front().as_text();
  if (token == "bos_token") return {Slot::Kind::kBos};
  if (token == "eos_token") return {Slot::Kind::kEos};
  items.front().refuse("use bos_token or eos_token, or {{\"token\": TOKEN}} for another one");
}

std::optional<Slots> slots_of(const JsonNode& entry, std::string_view key, Placeholders wanted) {
  const auto format = entry.find(key);
  if (!format) return std::nullopt;
  format->allow_only({"slots", "tool_format"});
  const auto list = format->find("slots");
  if (!list) return std::nullopt;
  Slots slots;
  for (const JsonNode& slot : list->as_list()) slots.push_back(slot_of(slot));
  if (slots.empty()) return std::nullopt;
  check_placeholders(*list, slots, wanted);
  return slots;
}

std::string default_system_of(const JsonNode& entry) {
  const auto given = entry.find("default_system");
  if (!given) return "";
  if (!given->is_list()) return given->as_text();
  std::string text;
  for (const JsonNode& part : given->as_list()) text += part.as_text();
  return text;
}

std::vector<std::string> stop_words_of(const JsonNode& entry) {
  std::vector<std::string> words;
  if (const auto given = entry.find("stop_words")) {
    for (const JsonNode& word : given->as_list()) words.push_back(word.as_text());
  }
  if (words.empty() && entry.flag("replace_eos", false)) {
    entry.at("replace_eos").refuse("eos becomes the first of stop_words, and none is there; name it");
  }
  return words;
}

TemplateClass class_of(const JsonNode& entry) {
  const auto given = entry.find("template_class");
  if (!given) return TemplateClass::kTemplate;
  const auto found = std::ranges::find(kClasses, given->as_text(), &ClassName::name);
  if (found != kClasses.end()) return found->value;
  given->refuse("use Template, Llama2Template, LFDefaultTemplate or ReasoningTemplate");
}

void check_llama2(const JsonNode& entry, const TemplateText& text) {
  if (text.template_class != TemplateClass::kLlama2) return;
  if (text.system.size() == 1 && text.system.front().kind == Slot::Kind::kText) return;
  entry.at("format_system").refuse("Llama2Template puts the system text into the user's message; use one slot, a text");
}

void fill_formats(const JsonNode& entry, TemplateText& text) {
  const Slots content = {{Slot::Kind::kText, "{{content}}"}};
  Slots answer = content;
  Slots call = {{Slot::Kind::kText, "Action: {{name}}\nAction Input: {{arguments}}"}};
  if (!text.efficient_eos) {
    answer.push_back({Slot::Kind::kEos});
    call.push_back({Slot::Kind::kEos});
  }
  text.user = slots_of(entry, "format_user", Placeholders::kContent).value_or(content);
  text.assistant = slots_of(entry, "format_assistant", Placeholders::kContent).value_or(answer);
  text.system = slots_of(entry, "format_system", Placeholders::kContent).value_or(content);
  text.function = slots_of(entry, "format_function", Placeholders::kCall).value_or(call);
  text.observation = slots_of(entry, "format_observation", Placeholders::kContent).value_or(text.user);
  text.separator = slots_of(entry, "format_separator", Placeholders::kNone).value_or(Slots{});
  text.prefix = slots_of(entry, "format_prefix", Placeholders::kNone).value_or(Slots{});
}

TemplateText template_of(const JsonNode& entry) {
  entry.allow_only({"name", "format_user", "format_assistant", "format_system", "format_function", "format_observation",
                    "format_tools", "format_separator", "format_prefix", "default_system", "stop_words",
                    "efficient_eos", "replace_eos", "force_system", "template_class"});
  TemplateText text;
  text.name = entry.text("name");
  text.where = entry.file();
  text.default_system = default_system_of(entry);
  text.stop_words = stop_words_of(entry);
  text.efficient_eos = entry.flag("efficient_eos", false);
  text.replace_eos = entry.flag("replace_eos", false);
  entry.flag("force_system", false);
  text.template_class = class_of(entry);
  if (const auto tools = entry.find("format_tools")) tools->expect_object();
  fill_formats(entry, text);
  check_llama2(entry, text);
  return text;
}

// Entries by name, each once.
std::vector<std::pair<std::string, JsonNode>> named_entries(const JsonNode& file) {
  std::vector<std::pair<std::string, JsonNode>> entries;
  std::set<std::string> names;
  for (const JsonNode& entry : file.as_list()) {
    const std::string name = entry.text("name");
    if (!names.insert(name).second) entry.at("name").refuse("a template before it has this name; keep one");
    entries.emplace_back(name, entry);
  }
  return entries;
}

// Messages begin "FILE: template qwen: format_user.slots[0]".
TemplateText named_template(const JsonNode& entry) {
  const std::string place = fmt::format("{}: template {}", entry.file(), shown_text(entry.text("name")));
  return template_of(JsonNode(entry.json(), place));
}

fs::path shipped_file() {
  const auto share = config::share_folder();
  if (share) return *share / "configs" / "finetune" / "templates.json";
  config_error(
      "--prompt-type names a template, and no shipped files are beside this program; give a file of templates by "
      "--prompt-type-path, or set SHARDLOOM_SHARE to the share/shardloom of an installation");
}

}  // namespace

std::string_view name_of(TemplateClass template_class) {
  return std::ranges::find(kClasses, template_class, &ClassName::value)->name;
}

std::vector<TemplateText> parse_templates(std::string_view json, const std::string& file) {
  const nlohmann::json document = parse_json_text(json, file);
  std::vector<TemplateText> templates;
  for (const auto& [name, entry] : named_entries(JsonNode(document, file))) templates.push_back(named_template(entry));
  return templates;
}

TemplateText read_template(const fs::path& given, const std::string& name) {
  const fs::path path = given.empty() ? shipped_file() : given;
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) {
    config_error("--prompt-type-path is {}, which is no file; give a templates.json", path.string());
  }
  const std::string file = path.string();
  const nlohmann::json document = parse_json_file(path);
  std::vector<std::string> names;
  for (const auto& [known, entry] : named_entries(JsonNode(document, file))) {
    if (known == name) return named_template(entry);
    names.push_back(shown_text(known));
  }
  const auto nearest = nearest_spelling(name, names);
  config_error("--prompt-type is '{}', which is no template of {}; {}its templates are {}", shown_text(name), file,
               nearest ? fmt::format("did you mean {}? ", *nearest) : "", fmt::join(names, ", "));
}

}  // namespace loom::data
