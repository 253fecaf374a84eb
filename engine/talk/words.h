// Words: converts text to token ids and back: by the tokenizer of a model's folder, or bytes. Private to engine/talk.
//
// Text     by the folder's tokenizer.json, if it has one; else, and with --bytes-as-tokens, a token is a byte.
// Ends     the end tokens of the tokenizer's files, of config.json if these name none, and of --add-eos-token. Bytes
//          have no end token.
// Threads  const after construction.
// Errors   ConfigError: an unreadable tokenizer, an end token that it does not have.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/talk/options.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "models/decoder/decoder_config.h"

namespace loom::talk {

using Tokens = std::vector<std::int32_t>;

class Words {
 public:
  // `what` names the text that would be read as bytes, for messages: "the prompt".
  Words(const DecodingArguments& arguments, const models::DecoderConfig& config, std::string_view what);

  // `whole`: with the tokenizer's additions around a text.
  Tokens ids(const std::string& text, bool whole = true) const;
  const data::Tokenizer* tokenizer() const { return tokenizer_.get(); }  // null: bytes
  const Tokens& ends() const { return ends_; }

 private:
  std::int32_t id_of(const std::string& token, const std::filesystem::path& folder, std::string_view what) const;

  std::shared_ptr<const data::Tokenizer> tokenizer_;
  Tokens ends_;
};

}  // namespace loom::talk
