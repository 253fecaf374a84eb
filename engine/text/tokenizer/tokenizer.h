// Tokenizer: converts text to token ids and back, by a tokenizer.json of Hugging Face's.
//
// Read       models of type BPE: byte-level (GPT-2, Qwen, Llama 3) and of characters with byte fallback (Llama 2,
//            Mistral), with the steps before and behind them; docs/tokenizers.md has the list. The ids and texts equal
//            those from Hugging Face's library.
// Text       UTF-8; encode() refuses other bytes. decode() always returns UTF-8: invalid bytes become U+FFFD.
// Threads    a Tokenizer does not change and may be shared; copies share its data. A TokenEncoder and a TokenStream
//            belong to one thread and keep the tokenizer alive.
// Errors     ConfigError with file and key for a file that is malformed or needs an unsupported feature;
//            ConfigError with the byte for a text that is not UTF-8, or on which a pattern of the file takes too long.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace loom::data {

using TokenId = std::int32_t;

struct EncodeOptions {
  // Adds the file's tokens around a text (<|begin_of_text|>); Qwen's and GPT-2's have none.
  bool add_special_tokens = true;
  // The texts of special tokens are encoded as ordinary text.
  bool split_special_tokens = false;
};

struct TokenizerParts;

class Tokenizer {
 public:
  // `path` is a tokenizer.json, or a folder with one.
  static Tokenizer from_file(const std::filesystem::path& path);
  // `file` is the name in messages.
  static Tokenizer parse(std::string_view json, const std::string& file);

  // The number of tokens.
  std::int64_t size() const;
  // One past the highest id: the least vocabulary of a model that reads the ids.
  TokenId id_limit() const;
  std::optional<TokenId> find(std::string_view token) const;
  // The token's text in the file; nothing for an id without a token.
  std::optional<std::string_view> token(TokenId id) const;
  bool is_special(TokenId id) const;

  // Encodes with a TokenEncoder of its own, which is slow for many texts.
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // Ids without a token, as in a model's padded vocabulary, give no text.
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens = false) const;

 private:
  friend class TokenEncoder;
  friend class TokenStream;
  explicit Tokenizer(std::shared_ptr<const TokenizerParts> parts);

  std::shared_ptr<const TokenizerParts> parts_;
};

// Encodes many texts; caches pieces (24 MB at most).
class TokenEncoder {
 public:
  explicit TokenEncoder(const Tokenizer& tokenizer);
  ~TokenEncoder();
  TokenEncoder(TokenEncoder&&) noexcept;

  // Appends to `ids`.
  void encode(std::string_view text, std::vector<TokenId>& ids, const EncodeOptions& options = {});

 private:
  class Run;
  struct Scratch;

  std::shared_ptr<const TokenizerParts> parts_;
  std::unique_ptr<Scratch> scratch_;
};

// Decodes token by token. The texts together equal the text of decode(); none of them ends within a character.
class TokenStream {
 public:
  explicit TokenStream(const Tokenizer& tokenizer, bool skip_special_tokens = false);
  ~TokenStream();
  TokenStream(TokenStream&&) noexcept;

  // The text that is final now; often empty.
  std::string push(TokenId id);
  // The text that was held back. No push() may follow.
  std::string finish();

 private:
  struct Run;

  std::shared_ptr<const TokenizerParts> parts_;
  bool skip_special_tokens_;
  std::unique_ptr<Run> run_;
};

}  // namespace loom::data
