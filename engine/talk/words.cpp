#include "engine/talk/words.h"

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/text/tokenizer/special_ids.h"
#include "models/hf/folder_files.h"

namespace loom::talk {

Words::Words(const DecodingArguments& arguments, const models::DecoderConfig& config, std::string_view what) {
  const std::filesystem::path& folder = arguments.model_dir;
  if (!arguments.bytes_as_tokens && models::has_tokenizer(folder)) {
    tokenizer_ = std::make_shared<data::Tokenizer>(data::Tokenizer::from_file(folder));
    ends_ = data::read_special_ids(folder, *tokenizer_).stop;
    if (ends_.empty()) ends_.assign(config.eos_token_ids.begin(), config.eos_token_ids.end());
  } else {
    models::refuse_unread_tokenizer(folder, arguments.bytes_as_tokens, what);
  }
  for (const std::string& token : arguments.add_eos_token) ends_.push_back(id_of(token, folder, what));
}

Tokens Words::ids(const std::string& text, bool whole) const {
  if (tokenizer_) return tokenizer_->encode(text, {.add_special_tokens = whole});
  Tokens ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::int32_t Words::id_of(const std::string& token, const std::filesystem::path& folder, std::string_view what) const {
  if (!tokenizer_) {
    config_error(
        "--add-eos-token is {}, but {} is read as bytes, which have no tokens of that kind; leave it out, or use "
        "--stop-words",
        shown_text(token), what);
  }
  const auto id = tokenizer_->find(token);
  if (!id) {
    config_error(
        "--add-eos-token is {}, but the tokenizer in {} has no such token; use a token of its vocabulary, or "
        "--stop-words for other texts",
        shown_text(token), escaped(folder.string()));
  }
  return *id;
}

}  // namespace loom::talk
