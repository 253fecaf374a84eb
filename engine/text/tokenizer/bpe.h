// Bpe: the model of tokenizer.json: a vocabulary, and merges in the order of their rank. Private to engine/text.
//
// A piece   begins as the symbols of its characters (of its bytes if the pre-tokenizer is byte-level). The pair of
//           the lowest rank is merged, ties go to the leftmost, until no pair has a rank.
// Unknown   a character without a symbol becomes the tokens <0xHH> of its bytes (byte_fallback, if all exist),
//           else unk_token (neighbours are one with fuse_unk), else nothing, as in Hugging Face's library.
// Threads   a constant; a BpeScratch belongs to one thread and one Bpe.
// Errors    ConfigError with file and key.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/text/tokenizer/json_node.h"
#include "engine/text/tokenizer/pair_table.h"
#include "engine/text/tokenizer/piece_cache.h"

namespace loom::data {

// Ids are indices of lists.
inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 24U;

struct BpeScratch {
  struct Symbol {
    std::int32_t id = 0;
    std::int32_t previous = -1;
    std::int32_t next = -1;
  };
  std::vector<std::int32_t> ids;
  std::vector<PairTable::Merge> merges;
  std::vector<Symbol> symbols;
  std::vector<std::uint64_t> queue;
  PieceCache cache;
};

class Bpe {
 public:
  // `byte_level`: pieces are bytes.
  Bpe(const JsonNode& node, bool byte_level);

  Bpe(Bpe&&) = default;

  // Adds the ids of a piece that is not empty.
  void encode(std::string_view piece, BpeScratch& scratch, std::vector<std::int32_t>& ids) const;

  // One past the highest id.
  std::int32_t id_limit() const { return static_cast<std::int32_t>(tokens_.size()); }
  std::int32_t tokens() const { return static_cast<std::int32_t>(ids_.size()); }
  std::optional<std::int32_t> find(std::string_view token) const;
  // Null for an id without a token.
  const std::string* token(std::int32_t id) const;

 private:
  // The symbols of a character: a token, tokens of its bytes, or the unknown token.
  struct Symbols {
    std::vector<std::int32_t> ids;
    bool token = false;
    bool unknown = false;
  };
  class Beginning;

  void read_vocabulary(const JsonNode& node);
  void read_merges(const JsonNode& node);
  void read_merge(const JsonNode& node, std::uint32_t rank);
  std::int32_t id_of(const JsonNode& node, std::string_view token) const;
  void prepare_bytes();
  void prepare_characters();
  Symbols symbols_of(std::string_view character) const;
  bool begin(std::string_view piece, std::vector<std::int32_t>& ids) const;
  void encode_new(std::string_view piece, BpeScratch& scratch) const;
  void merge_short(BpeScratch& scratch) const;
  void merge_long(BpeScratch& scratch) const;
  std::optional<std::int32_t> whole_piece(std::string_view piece) const;

  bool byte_level_ = false;
  bool ignore_merges_ = false;
  bool byte_fallback_ = false;
  bool fuse_unknown_ = false;
  std::optional<std::int32_t> unknown_;
  std::vector<std::optional<std::string>> tokens_;  // by id
  std::unordered_map<std::string_view, std::int32_t> ids_;
  std::unordered_map<std::string, std::int32_t> pieces_;  // with ignore_merges: tokens as pieces
  std::array<Symbols, 256> bytes_;                        // for a byte-level model
  std::vector<std::int32_t> characters_;  // for any other: ids of the first 65536 characters, -1 without one
  PairTable pairs_;
};

}  // namespace loom::data
