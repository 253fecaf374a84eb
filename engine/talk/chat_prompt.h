// ChatPrompt: converts a conversation to the prompt's ids. Private to engine/talk.
//
// Template  --prompt-type, as in preprocess; --chat-template; else the template of the model's folder.
// Threads   one.
// Errors    ConfigError: no template, an unreadable one, or one that refuses the conversation.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "engine/talk/options.h"
#include "engine/talk/words.h"
#include "engine/text/preprocess/prompt_template.h"
#include "engine/text/template/chat_template.h"

namespace loom::talk {

class ChatPrompt {
 public:
  // `words` outlives it.
  ChatPrompt(const ChatArguments& arguments, const Words& words);

  // `messages`: {"role", "content"}: a system message or none, then user, assistant, ..., user.
  Tokens ids(const nlohmann::ordered_json& messages) const;
  // The same as a text, whose contents may name pictures. ConfigError with --prompt-type, which knows texts alone.
  std::string text(const nlohmann::ordered_json& messages) const;
  // The ids that end an answer: the ends of the words, and the template's additions.
  const Tokens& ends() const { return ends_; }

 private:
  void use_named(const ChatArguments& arguments);

  const Words& words_;
  std::optional<data::ChatTemplate> jinja_;
  std::optional<data::PromptTemplate> named_;
  nlohmann::ordered_json variables_ = nlohmann::ordered_json::object();
  Tokens ends_;
};

}  // namespace loom::talk
