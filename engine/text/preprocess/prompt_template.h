// PromptTemplate: converts a conversation to the prompt's ids, by a template that preprocess used for its samples
// (docs/preprocess.md).
//
// Threads  const after construction; a TokenEncoder belongs to one thread.
// Errors   ConfigError: an unknown template, a template that does not fit the tokenizer.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/text/preprocess/options.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace loom::data {

class Template;

class PromptTemplate {
 public:
  // `file` empty: the shipped configs/finetune/templates.json. `folder` is the tokenizer's.
  PromptTemplate(const std::filesystem::path& file, const std::string& name, EnableThinking thinking,
                 const Tokenizer& tokenizer, const std::filesystem::path& folder);
  ~PromptTemplate();

  // `said`: user, assistant, user, ..., user.
  std::vector<TokenId> ids(const std::string& system, std::span<const std::string> said, TokenEncoder& encoder) const;
  // The ids that end an answer: eos, and the template's stop words.
  const std::vector<TokenId>& ends() const { return ends_; }

 private:
  std::unique_ptr<const Template> template_;
  std::vector<TokenId> ends_;
};

}  // namespace loom::data
