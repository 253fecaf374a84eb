// ChatTemplate: renders a conversation in the form that a model was trained on, by the Jinja template beside its
// tokenizer; the text equals Transformers' apply_chat_template(tokenize=False).
//
// Templates   the folder's chat_template.jinja, and additional_chat_templates/NAME.jinja; else chat_template
//             of tokenizer_config.json: a text, or a list of {name, template}. With tools, the one named tool_use is
//             used if there is one, else `default`.
// Variables   messages, tools, documents, add_generation_prompt, the tokens that tokenizer_config.json names
//             (bos_token, eos_token, ...), and the variables of ChatOptions, which win. Reasoning under an
//             older name is passed as reasoning_content too, as in Transformers.
// Language    Jinja 3.1 with trim_blocks and lstrip_blocks, break and continue, {% generation %}; docs/tokenizers.md
//             lists the unsupported parts, which are refused.
// Limits      for hostile templates: ChatOptions, and levels of nesting; a template cannot reach the machine.
// Threads     const after construction: rendering is safe from any number of threads.
// Errors      ConfigError "FILE:LINE: ..." for an unreadable template, and where Python would raise;
//             ChatRefusal for raise_exception() of the template.
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "engine/core/error.h"

namespace loom::data {

struct ChatOptions {
  nlohmann::ordered_json tools = nullptr;      // a list of objects; null: none
  nlohmann::ordered_json documents = nullptr;  // a list of objects; null: none
  bool add_generation_prompt = false;          // ends with the begin of the assistant's turn
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  std::optional<std::tm> now = {};      // the result of strftime_now(); none: the local time
  std::int64_t most_work = 50'000'000;  // evaluated nodes, and items and texts made: about 1 s
  std::size_t most_output_bytes = 1U << 28U;
};

// The template refuses this conversation.
class ChatRefusal : public ConfigError {
 public:
  ChatRefusal(const std::string& what, std::string message) : ConfigError(what), message_(std::move(message)) {}
  // The template's text.
  const std::string& message() const { return message_; }

 private:
  std::string message_;
};

// The texts of special tokens by their names in tokenizer_config.json.
using TokenTexts = std::map<std::string, std::string, std::less<>>;

class ChatTemplate {
 public:
  static ChatTemplate from_folder(const std::filesystem::path& folder);
  // From a Jinja file, with the tokens that tokenizer_config.json of `folder` names, if it exists.
  static ChatTemplate from_file(const std::filesystem::path& file, const std::filesystem::path& folder);
  // Whether from_folder() would find a template.
  static bool is_in(const std::filesystem::path& folder);
  // `name`: its name in messages; `tokens`: "bos_token" and the like.
  static ChatTemplate from_text(std::string_view text, const std::string& name, const TokenTexts& tokens = {});

  // A token of the template, "bos_token" or the like.
  std::optional<std::string> token(std::string_view name) const;

  // `messages`: a list of objects, with role and content in most templates.
  std::string render(const nlohmann::ordered_json& messages, const ChatOptions& options = {}) const;

 private:
  struct Parts;
  explicit ChatTemplate(std::shared_ptr<const Parts> parts);

  std::shared_ptr<const Parts> parts_;
};

}  // namespace loom::data
