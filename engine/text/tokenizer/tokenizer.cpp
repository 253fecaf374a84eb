#include "engine/text/tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/text/tokenizer/added_tokens.h"
#include "engine/text/tokenizer/bpe.h"
#include "engine/text/tokenizer/json_node.h"
#include "engine/text/tokenizer/normalizer.h"
#include "engine/text/tokenizer/post_processor.h"
#include "engine/text/tokenizer/pre_tokenizer.h"
#include "engine/text/tokenizer/text_decoder.h"

namespace loom::data {

struct TokenizerParts {
  explicit TokenizerParts(const JsonNode& node);

  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Bpe model;
  AddedTokens added;
  PostProcessor post_processor;
  TextDecoder decoder;
  std::vector<const AddedToken*> added_by_id;  // null: not an added token

  const AddedToken* added_token(TokenId id) const {
    const bool there = id >= 0 && static_cast<std::size_t>(id) < added_by_id.size();
    return there ? added_by_id[static_cast<std::size_t>(id)] : nullptr;
  }
  // Null for an id without a token.
  const std::string* token(TokenId id) const {
    const AddedToken* token = added_token(id);
    return token ? &token->content : model.token(id);
  }
};

namespace {

template <class Part>
Part read_part(const JsonNode& node, std::string_view key) {
  const auto part = node.find(key);
  return part ? Part(*part) : Part();
}

AddedTokens read_added(const JsonNode& node, const Bpe& model, const Normalizer& normalizer) {
  const auto list = node.find("added_tokens");
  return list ? AddedTokens(*list, model, normalizer) : AddedTokens();
}

PostProcessor read_post_processor(const JsonNode& node, TokenId id_limit) {
  const auto part = node.find("post_processor");
  return part ? PostProcessor(*part, id_limit) : PostProcessor();
}

TokenId limit_of(const Bpe& model, const AddedTokens& added) {
  TokenId limit = model.id_limit();
  for (const AddedToken& token : added.all()) limit = std::max(limit, token.id + 1);
  return limit;
}

const JsonNode& checked(const JsonNode& node) {
  node.allow_only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                   "decoder", "model"});
  for (const std::string_view key : {"truncation", "padding"}) {
    if (const auto given = node.find(key)) given->refuse("Shardloom cuts and pads by its own flags; write null");
  }
  return node;
}

}  // namespace

TokenizerParts::TokenizerParts(const JsonNode& node)
    : normalizer(read_part<Normalizer>(checked(node), "normalizer")),
      pre_tokenizer(read_part<PreTokenizer>(node, "pre_tokenizer")),
      model(node.at("model"), pre_tokenizer.byte_level()),
      added(read_added(node, model, normalizer)),
      post_processor(read_post_processor(node, limit_of(model, added))),
      decoder(read_part<TextDecoder>(node, "decoder")) {
  added_by_id.resize(static_cast<std::size_t>(limit_of(model, added)));
  for (const AddedToken& token : added.all()) added_by_id[static_cast<std::size_t>(token.id)] = &token;
}

Tokenizer::Tokenizer(std::shared_ptr<const TokenizerParts> parts) : parts_(std::move(parts)) {}

Tokenizer Tokenizer::from_file(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto file = std::filesystem::is_directory(path, ignored) ? path / "tokenizer.json" : path;
  const std::string name = file.string();
  const nlohmann::json json = parse_json_file(file);
  return Tokenizer(std::make_shared<const TokenizerParts>(JsonNode(json, name)));
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& file) {
  const nlohmann::json parsed = parse_json_text(json, file);
  return Tokenizer(std::make_shared<const TokenizerParts>(JsonNode(parsed, file)));
}

std::int64_t Tokenizer::size() const {
  const auto& added = parts_->added.all();
  const auto beside =
      std::ranges::count_if(added, [&](const AddedToken& token) { return !parts_->model.token(token.id); });
  return parts_->model.tokens() + beside;
}

TokenId Tokenizer::id_limit() const { return static_cast<TokenId>(parts_->added_by_id.size()); }

std::optional<TokenId> Tokenizer::find(std::string_view token) const {
  if (const auto id = parts_->model.find(token)) return id;
  const auto& added = parts_->added.all();
  const auto found = std::ranges::find(added, token, &AddedToken::content);
  return found == added.end() ? std::nullopt : std::optional(found->id);
}

std::optional<std::string_view> Tokenizer::token(TokenId id) const {
  const std::string* token = parts_->token(id);
  return token ? std::optional<std::string_view>(*token) : std::nullopt;
}

bool Tokenizer::is_special(TokenId id) const {
  const AddedToken* token = parts_->added_token(id);
  return token && token->special;
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<TokenId> ids;
  TokenEncoder(*this).encode(text, ids, options);
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  TokenStream stream(*this, skip_special_tokens);
  std::string text;
  for (const TokenId id : ids) text += stream.push(id);
  return text += stream.finish();
}

struct TokenEncoder::Scratch {
  RegexScratch regex;
  BpeScratch bpe;
};

TokenEncoder::TokenEncoder(const Tokenizer& tokenizer)
    : parts_(tokenizer.parts_), scratch_(std::make_unique<Scratch>()) {}
TokenEncoder::~TokenEncoder() = default;
TokenEncoder::TokenEncoder(TokenEncoder&&) noexcept = default;

// One text on its way through the parts.
class TokenEncoder::Run {
 public:
  Run(const TokenizerParts& parts, Scratch& scratch, bool split_special, std::vector<TokenId>& ids)
      : parts_(parts), scratch_(scratch), split_special_(split_special), ids_(ids) {}

  void text(std::string_view text) {
    parts_.added.each_part(text, false, split_special_,
                           [&](std::string_view part, std::size_t begin, const AddedToken* token) {
                             token ? ids_.push_back(token->id) : raw_part(part, begin == 0);
                           });
  }

 private:
  void raw_part(std::string_view part, bool at_start) {
    if (parts_.normalizer.changes_nothing()) return normalized_part(part, at_start);
    normalized_part(parts_.normalizer.apply(part, scratch_.regex), at_start);
  }
  void normalized_part(std::string_view part, bool at_start) {
    if (!parts_.added.any_normalized()) return plain_part(part, at_start);
    parts_.added.each_part(part, true, split_special_,
                           [&](std::string_view plain, std::size_t begin, const AddedToken* token) {
                             token ? ids_.push_back(token->id) : plain_part(plain, at_start && begin == 0);
                           });
  }
  void plain_part(std::string_view part, bool at_start) {
    parts_.pre_tokenizer.each_piece(part, at_start, scratch_.regex,
                                    [&](std::string_view piece) { parts_.model.encode(piece, scratch_.bpe, ids_); });
  }

  const TokenizerParts& parts_;
  Scratch& scratch_;
  bool split_special_;
  std::vector<TokenId>& ids_;
};

void TokenEncoder::encode(std::string_view text, std::vector<TokenId>& ids, const EncodeOptions& options) {
  if (const auto at = invalid_utf8(text)) {
    config_error("the text is no UTF-8 at byte {} of {}; convert it to UTF-8", *at, text.size());
  }
  const auto& around = parts_->post_processor;
  if (options.add_special_tokens) ids.insert(ids.end(), around.before().begin(), around.before().end());
  Run(*parts_, *scratch_, options.split_special_tokens, ids).text(text);
  if (options.add_special_tokens) ids.insert(ids.end(), around.behind().begin(), around.behind().end());
}

struct TokenStream::Run {
  explicit Run(const TextDecoder& decoder) : decode(decoder) {}
  DecodeRun decode;
};

TokenStream::TokenStream(const Tokenizer& tokenizer, bool skip_special_tokens)
    : parts_(tokenizer.parts_),
      skip_special_tokens_(skip_special_tokens),
      run_(std::make_unique<Run>(parts_->decoder)) {}
TokenStream::~TokenStream() = default;
TokenStream::TokenStream(TokenStream&&) noexcept = default;

std::string TokenStream::push(TokenId id) {
  const std::string* token = parts_->token(id);
  if (!token) return {};
  if (skip_special_tokens_) {
    const AddedToken* added = parts_->added_token(id);
    if (added && added->special) return {};
  }
  return run_->decode.push(*token);
}

std::string TokenStream::finish() { return run_->decode.finish(); }

}  // namespace loom::data
