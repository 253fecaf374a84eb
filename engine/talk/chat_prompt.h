// ChatPrompt: a conversation as the ids that the model answers. Private to engine/talk.
//
// Template  --prompt-type, as preprocess has it; --chat-template; else that of the model's folder.
// Threads   one.
// Errors    ConfigError: no template, one that cannot be read, one that refuses the conversation.
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
  // What ends an answer: the ends of the words, and what the template adds.
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
