// PromptTemplate: a conversation as the ids that a model answers, by a template that preprocess made its samples with
// (docs/preprocess.md).
//
// Threads  const after construction; a TokenEncoder belongs to one thread.
// Errors   ConfigError: no such template, a template that does not fit the tokenizer.
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
  // `file` empty: configs/finetune/templates.json of those that are shipped. `folder` is that of the tokenizer.
  PromptTemplate(const std::filesystem::path& file, const std::string& name, EnableThinking thinking,
                 const Tokenizer& tokenizer, const std::filesystem::path& folder);
  ~PromptTemplate();

  // `said`: user, assistant, user, ..., user.
  std::vector<TokenId> ids(const std::string& system, std::span<const std::string> said, TokenEncoder& encoder) const;
  // What ends an answer: eos, and the template's stop words.
  const std::vector<TokenId>& ends() const { return ends_; }

 private:
  std::unique_ptr<const Template> template_;
  std::vector<TokenId> ends_;
};

}  // namespace loom::data
