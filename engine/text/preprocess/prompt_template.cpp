#include "engine/text/preprocess/prompt_template.h"

#include "engine/core/error.h"
#include "engine/text/preprocess/template.h"

namespace loom::data {

PromptTemplate::PromptTemplate(const std::filesystem::path& file, const std::string& name, EnableThinking thinking,
                               const Tokenizer& tokenizer, const std::filesystem::path& folder)
    : template_(std::make_unique<const Template>(read_template(file, name), thinking, tokenizer,
                                                 read_special_ids(folder, tokenizer))) {
  if (const auto eos = template_->special_ids().eos) ends_.push_back(*eos);
  for (const std::string& word : template_->text().stop_words) {
    if (const auto id = tokenizer.find(word)) ends_.push_back(*id);
  }
}

PromptTemplate::~PromptTemplate() = default;

std::vector<TokenId> PromptTemplate::ids(const std::string& system, std::span<const std::string> said,
                                         TokenEncoder& encoder) const {
  require(said.size() % 2 == 1, "{} messages; the last one is the user's", said.size());
  Chat chat{{}, {}, system, {}, "the conversation"};
  for (std::size_t i = 0; i < said.size(); ++i) {
    chat.prompt.push_back({i % 2 == 0 ? Role::kUser : Role::kAssistant, said[i]});
  }
  return template_->one_turn(chat, {Role::kAssistant, ""}, encoder).prompt;
}

}  // namespace loom::data
