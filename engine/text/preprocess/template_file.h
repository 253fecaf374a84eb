// Templates of prompts in a templates.json of MindSpeed-LLM's: a list of objects, one per template.
//
// Formats    format_user, format_assistant, format_system, format_function, format_observation, format_separator,
//            format_prefix: {"slots": [...]}. Missing formats are filled in here: user, system and observation
//            "{{content}}" (observation: as user), assistant "{{content}}" and eos, function "Action: {{name}}\nAction
//            Input: {{arguments}}" and eos, the others empty. With efficient_eos the defaults have no eos.
// Slots      a text with placeholders: {{content}}, and in user's {{idx}} (the first of each is replaced; all of
//            {{name}} and {{arguments}}); ["bos_token"] or ["eos_token"]; {"token": T}, the id of T.
// Classes    template_class: Template, Llama2Template, LFDefaultTemplate, ReasoningTemplate (template.h).
// Errors     ConfigError with file, template and key: an invalid slot, a text without its placeholder, an
//            unsupported key, a name that is unknown or occurs twice.
// Source     MindSpeed-LLM mindspeed_llm/tasks/preprocess/templates.py; departures in docs/preprocess.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace loom::data {

struct Slot {
  enum class Kind : std::uint8_t { kText, kBos, kEos, kToken };
  Kind kind = Kind::kText;
  std::string text = {};  // for kText and kToken
  bool operator==(const Slot&) const = default;
};

enum class TemplateClass : std::uint8_t { kTemplate, kLlama2, kLFDefault, kReasoning };
std::string_view name_of(TemplateClass template_class);

struct TemplateText {
  std::string name;
  std::string where;  // "configs/finetune/templates.json: template qwen"
  std::vector<Slot> user;
  std::vector<Slot> assistant;
  std::vector<Slot> system;
  std::vector<Slot> function;
  std::vector<Slot> observation;
  std::vector<Slot> separator;
  std::vector<Slot> prefix;
  std::string default_system;
  std::vector<std::string> stop_words;
  bool efficient_eos = false;
  bool replace_eos = false;
  TemplateClass template_class = TemplateClass::kTemplate;
};

// All templates of a file, in its order. `file` is its name for messages.
std::vector<TemplateText> parse_templates(std::string_view json, const std::string& file);

// One of them. `file` empty: the shipped configs/finetune/templates.json (engine/config/share_folder.h).
// Other templates in the file may be malformed.
TemplateText read_template(const std::filesystem::path& file, const std::string& name);

}  // namespace loom::data
