// ChatTemplate: a conversation as the text that a model was trained on, by the Jinja template beside its tokenizer; the
// text is that of Transformers' apply_chat_template(tokenize=False).
//
// Templates   chat_template.jinja of the folder, with those of additional_chat_templates/NAME.jinja; else chat_template
//             of tokenizer_config.json: a text, or a list of {name, template}. With tools the one named tool_use is
//             taken, if there is one, else `default`.
// Variables   messages, tools, documents, add_generation_prompt, the tokens that tokenizer_config.json names
//             (bos_token, eos_token, ...), and those of ChatOptions, which win. Reasoning that a message has under an
//             older name is given as reasoning_content too, as Transformers does it.
// Language    Jinja 3.1 with trim_blocks and lstrip_blocks, break and continue, {% generation %}; docs/tokenizers.md
//             says what is left out. What is left out is refused.
// Limits      of hostile templates: ChatOptions, and levels of nesting; nothing of the machine can be reached.
// Threads     const after construction: rendering is safe from any number of threads.
// Errors      ConfigError "FILE:LINE: ..." for a template that cannot be read, and where Python would raise;
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
  std::optional<std::tm> now = {};      // what strftime_now() writes; none: the local time
  std::int64_t most_work = 50'000'000;  // nodes that are evaluated, items and texts that are made: about 1 s
  std::size_t most_output_bytes = 1U << 28U;
};

// The template does not take this conversation.
class ChatRefusal : public ConfigError {
 public:
  ChatRefusal(const std::string& what, std::string message) : ConfigError(what), message_(std::move(message)) {}
  // As the template gave it.
  const std::string& message() const { return message_; }

 private:
  std::string message_;
};

// The texts of special tokens by their names in tokenizer_config.json.
using TokenTexts = std::map<std::string, std::string, std::less<>>;

class ChatTemplate {
 public:
  static ChatTemplate from_folder(const std::filesystem::path& folder);
  // Of a Jinja file, with the tokens that tokenizer_config.json of `folder` names, if there is one.
  static ChatTemplate from_file(const std::filesystem::path& file, const std::filesystem::path& folder);
  // Whether from_folder() would find a template.
  static bool is_in(const std::filesystem::path& folder);
  // `name`: what messages call it; `tokens`: "bos_token" and its kin.
  static ChatTemplate from_text(std::string_view text, const std::string& name, const TokenTexts& tokens = {});

  // A token that the template is given, "bos_token" or its kin.
  std::optional<std::string> token(std::string_view name) const;

  // `messages`: a list of objects, with role and content in most templates.
  std::string render(const nlohmann::ordered_json& messages, const ChatOptions& options = {}) const;

 private:
  struct Parts;
  explicit ChatTemplate(std::shared_ptr<const Parts> parts);

  std::shared_ptr<const Parts> parts_;
};

}  // namespace loom::data
