// ChatPrompt: a conversation as the ids that the model answers. Private to engine/cli.
//
// Template  --prompt-type, as preprocess has it; --chat-template; else that of the model's folder.
// Threads   one.
// Errors    ConfigError: no template, one that cannot be read, one that refuses the conversation.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "engine/cli/arguments.h"
#include "engine/cli/words.h"
#include "engine/data/chat_template/chat_template.h"
#include "engine/data/preprocess/prompt_template.h"

namespace loom::cli {

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

}  // namespace loom::cli
