#include "engine/talk/chat_prompt.h"

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::talk {
namespace {

data::ChatTemplate jinja_of(const ChatArguments& arguments) {
  if (arguments.chat_template) return data::ChatTemplate::from_file(*arguments.chat_template, arguments.model_dir);
  if (data::ChatTemplate::is_in(arguments.model_dir)) return data::ChatTemplate::from_folder(arguments.model_dir);
  config_error(
      "{}: there is no chat template, neither as chat_template.jinja nor as chat_template of tokenizer_config.json; "
      "add "
      "--chat-template FILE or --prompt-type NAME, those that the model was trained with",
      escaped(arguments.model_dir.string()));
}

}  // namespace

ChatPrompt::ChatPrompt(const ChatArguments& arguments, const Words& words) : words_(words), ends_(words.ends()) {
  if (arguments.prompt_type) {
    use_named(arguments);
    return;
  }
  jinja_ = jinja_of(arguments);
  if (arguments.enable_thinking != data::EnableThinking::kNone) {
    variables_["enable_thinking"] = arguments.enable_thinking == data::EnableThinking::kTrue;
  }
}

void ChatPrompt::use_named(const ChatArguments& arguments) {
  if (words_.tokenizer() == nullptr) {
    config_error(
        "--prompt-type is {}, whose template is made of a tokenizer's tokens, and {} has no tokenizer.json; give "
        "--chat-template FILE",
        shown_text(*arguments.prompt_type), escaped(arguments.model_dir.string()));
  }
  named_.emplace(arguments.prompt_type_path, *arguments.prompt_type, arguments.enable_thinking, *words_.tokenizer(),
                 arguments.model_dir);
  ends_.insert(ends_.end(), named_->ends().begin(), named_->ends().end());
}

std::string ChatPrompt::text(const nlohmann::ordered_json& messages) const {
  if (!jinja_) {
    config_error(
        "the conversation has pictures, and --prompt-type names a template of texts; give --chat-template FILE");
  }
  return jinja_->render(messages, {.add_generation_prompt = true, .variables = variables_});
}

Tokens ChatPrompt::ids(const nlohmann::ordered_json& messages) const {
  if (jinja_) return words_.ids(text(messages), false);
  std::string system;
  std::vector<std::string> said;
  for (const auto& message : messages) {
    const bool is_system = message.at("role") == "system";
    (is_system ? system : said.emplace_back()) = message.at("content").get<std::string>();
  }
  data::TokenEncoder encoder(*words_.tokenizer());
  return named_->ids(system, said, encoder);
}

}  // namespace loom::talk
