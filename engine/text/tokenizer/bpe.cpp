#include "engine/text/tokenizer/bpe.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/text/tokenizer/byte_characters.h"
#include "engine/text/tokenizer/utf8.h"

namespace loom::data {
namespace {

constexpr char32_t kTabled = 0x10000;    // characters whose ids are in a table
constexpr std::size_t kShortPiece = 48;  // symbols; above, a queue is faster than looking through all

void refuse_affix(const JsonNode& node, std::string_view key) {
  const auto affix = node.find(key);
  if (affix && !affix->as_text().empty()) affix->refuse("Shardloom reads no BPE with it; use null");
}

// The two tokens of "a b" or ["a", "b"].
std::pair<std::string_view, std::string_view> halves_of(const JsonNode& node) {
  if (node.is_list()) {
    const auto& list = node.json();
    if (list.size() == 2 && list[0].is_string() && list[1].is_string()) {
      return {list[0].get_ref<const std::string&>(), list[1].get_ref<const std::string&>()};
    }
    node.refuse("use a list of two tokens");
  }
  const std::string_view text = node.as_text();
  const std::size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
    node.refuse("use two tokens with one space between them, or a list of two");
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

}  // namespace

// The first symbols of a piece, character by character.
class Bpe::Beginning {
 public:
  Beginning(const Bpe& bpe, std::vector<std::int32_t>& ids) : bpe_(bpe), ids_(ids) {}

  void add(std::int32_t id) {
    flush();
    ids_.push_back(id);
  }
  // Of a character that is no token. An unknown one before it comes after its bytes, as in Hugging Face's library.
  void add(const Symbols& symbols) {
    if (symbols.unknown) return add_unknown();
    ids_.insert(ids_.end(), symbols.ids.begin(), symbols.ids.end());
  }
  void flush() {
    if (pending_) ids_.push_back(*bpe_.unknown_);
    pending_ = false;
  }

 private:
  void add_unknown() {
    if (!bpe_.unknown_) return;
    if (!bpe_.fuse_unknown_) flush();
    pending_ = true;
  }

  const Bpe& bpe_;
  std::vector<std::int32_t>& ids_;
  bool pending_ = false;
};

Bpe::Bpe(const JsonNode& node, bool byte_level) : byte_level_(byte_level) {
  node.allow_only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                   "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (const auto type = node.find("type"); type && type->as_text() != "BPE") type->refuse("use BPE");
  if (const auto dropout = node.find("dropout"); dropout && dropout->json() != 0) {
    dropout->refuse("encoding would not be the same twice; use null");
  }
  refuse_affix(node, "continuing_subword_prefix");
  refuse_affix(node, "end_of_word_suffix");
  ignore_merges_ = node.flag("ignore_merges", false);
  byte_fallback_ = node.flag("byte_fallback", false);
  fuse_unknown_ = node.flag("fuse_unk", false);
  read_vocabulary(node.at("vocab"));
  if (const auto unknown = node.find("unk_token")) unknown_ = id_of(*unknown, unknown->as_text());
  read_merges(node.at("merges"));
  byte_level_ ? prepare_bytes() : prepare_characters();
}

void Bpe::read_vocabulary(const JsonNode& node) {
  node.expect_object();
  const auto& vocabulary = node.json();
  if (static_cast<std::int64_t>(vocabulary.size()) > kMostTokens) {
    config_error("{} has {} tokens; at most {} are read", node.where(), vocabulary.size(), kMostTokens);
  }
  // Ids of published vocabularies have small gaps at most; a list by id must not be of another size than the file.
  const auto limit = std::min<std::int64_t>(kMostTokens, 16 * static_cast<std::int64_t>(vocabulary.size()) + 65536);
  for (const auto& [token, id] : vocabulary.items()) {
    const bool fits = id.is_number_unsigned() && id.get<std::uint64_t>() < static_cast<std::uint64_t>(limit);
    if (!fits) {
      config_error("{}: the id of '{}' is {}; use a whole number from 0 to {}", node.where(), shown_text(token),
                   shown_text(id.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)), limit - 1);
    }
    const auto index = id.get<std::size_t>();
    if (index >= tokens_.size()) tokens_.resize(index + 1);
    if (tokens_[index]) {
      config_error("{}: '{}' and '{}' have the same id {}; give each token its own", node.where(),
                   shown_text(*tokens_[index]), shown_text(token), index);
    }
    tokens_[index] = token;
  }
  ids_.reserve(vocabulary.size());
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    if (tokens_[id]) ids_.emplace(*tokens_[id], static_cast<std::int32_t>(id));
  }
}

std::int32_t Bpe::id_of(const JsonNode& node, std::string_view token) const {
  if (const auto id = find(token)) return *id;
  node.refuse("the vocabulary has no token '{}'", shown_text(token));
}

void Bpe::read_merges(const JsonNode& node) {
  const std::vector<JsonNode> merges = node.as_list();
  pairs_ = PairTable(merges.size());
  std::uint32_t rank = 0;
  for (const JsonNode& merge : merges) {
    // The first line of an old merges.txt.
    if (merge.is_text() && merge.as_text().starts_with("#version")) continue;
    read_merge(merge, rank++);
  }
}

void Bpe::read_merge(const JsonNode& node, std::uint32_t rank) {
  const auto [left, right] = halves_of(node);
  const std::int32_t left_id = id_of(node, left);
  const std::int32_t right_id = id_of(node, right);
  pairs_.put(left_id, right_id, {rank, id_of(node, std::string(left).append(right))});
}

void Bpe::prepare_bytes() {
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string character;
    append_character(character, character_of_byte(static_cast<unsigned char>(byte)));
    bytes_[byte] = symbols_of(character);
  }
  if (!ignore_merges_) return;
  for (const auto& [token, id] : ids_) {
    if (auto bytes = bytes_of_token(token)) pieces_.emplace(std::move(*bytes), id);
  }
}

void Bpe::prepare_characters() {
  characters_.assign(kTabled, -1);
  for (const auto& [token, id] : ids_) {
    if (token.empty()) continue;
    const Character first = character_at(token, 0);
    if (first.bytes == token.size() && first.code < kTabled) characters_[first.code] = id;
  }
}

std::optional<std::int32_t> Bpe::find(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

const std::string* Bpe::token(std::int32_t id) const {
  if (id < 0 || id >= id_limit() || !tokens_[static_cast<std::size_t>(id)]) return nullptr;
  return &*tokens_[static_cast<std::size_t>(id)];
}

Bpe::Symbols Bpe::symbols_of(std::string_view character) const {
  if (const auto id = find(character)) return {{*id}, true, false};
  Symbols symbols;
  for (const char byte : character) {
    if (!byte_fallback_) break;
    const auto id = find(fmt::format("<0x{:02X}>", static_cast<unsigned char>(byte)));
    if (!id) break;
    symbols.ids.push_back(*id);
  }
  if (symbols.ids.size() == character.size()) return symbols;
  return {{}, false, true};
}

// The symbols of `piece`.
bool Bpe::begin(std::string_view piece, std::vector<std::int32_t>& ids) const {
  Beginning beginning(*this, ids);
  if (byte_level_) {
    for (const char byte : piece) {
      const Symbols& symbols = bytes_[static_cast<unsigned char>(byte)];
      symbols.token ? beginning.add(symbols.ids.front()) : beginning.add(symbols);
    }
  } else {
    for (std::size_t at = 0; at < piece.size();) {
      const Character character = character_at(piece, at);
      const std::int32_t id = character.code < kTabled ? characters_[character.code] : -1;
      if (id >= 0) {
        beginning.add(id);
      } else {
        const Symbols symbols = symbols_of(piece.substr(at, character.bytes));
        symbols.token ? beginning.add(symbols.ids.front()) : beginning.add(symbols);
      }
      at += character.bytes;
    }
  }
  beginning.flush();
  return ids.size() > 1;
}

std::optional<std::int32_t> Bpe::whole_piece(std::string_view piece) const {
  if (!byte_level_) return find(piece);
  const auto found = pieces_.find(std::string(piece));
  return found == pieces_.end() ? std::nullopt : std::optional(found->second);
}

void Bpe::encode(std::string_view piece, BpeScratch& scratch, std::vector<std::int32_t>& ids) const {
  if (piece.size() > PieceCache::kMostPieceBytes) {
    encode_new(piece, scratch);
    ids.insert(ids.end(), scratch.ids.begin(), scratch.ids.end());
    return;
  }
  const std::uint64_t hash = PieceCache::hash_of(piece);
  std::size_t count = 0;
  if (const std::int32_t* known = scratch.cache.find(piece, hash, count)) {
    ids.insert(ids.end(), known, known + count);
    return;
  }
  encode_new(piece, scratch);
  scratch.cache.put(piece, hash, scratch.ids);
  ids.insert(ids.end(), scratch.ids.begin(), scratch.ids.end());
}

void Bpe::encode_new(std::string_view piece, BpeScratch& scratch) const {
  scratch.ids.clear();
  if (ignore_merges_) {
    if (const auto id = whole_piece(piece)) return scratch.ids.push_back(*id);
  }
  if (!begin(piece, scratch.ids)) return;
  scratch.ids.size() <= kShortPiece ? merge_short(scratch) : merge_long(scratch);
}

void Bpe::merge_short(BpeScratch& scratch) const {
  auto& ids = scratch.ids;
  auto& merges = scratch.merges;  // merges[i] belongs to ids[i] and ids[i + 1]
  merges.resize(ids.size() - 1);
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) merges[i] = pairs_.find(ids[i], ids[i + 1]);
  while (!merges.empty()) {
    const auto best = std::ranges::min_element(merges, std::less{}, &PairTable::Merge::rank);
    if (best->rank == PairTable::kNoRank) return;
    const auto at = best - merges.begin();
    ids[static_cast<std::size_t>(at)] = best->id;
    ids.erase(ids.begin() + at + 1);
    merges.erase(best);
    const auto i = static_cast<std::size_t>(at);
    if (i > 0) merges[i - 1] = pairs_.find(ids[i - 1], ids[i]);
    if (i < merges.size()) merges[i] = pairs_.find(ids[i], ids[i + 1]);
  }
}

// Pairs wait in a queue by rank and place. One that changed since is known by its rank.
void Bpe::merge_long(BpeScratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& queue = scratch.queue;
  const auto count = static_cast<std::int32_t>(scratch.ids.size());
  const auto merge_at = [&](std::int32_t at) {
    const auto& symbol = symbols[static_cast<std::size_t>(at)];
    if (symbol.id < 0 || symbol.next == count) return PairTable::Merge{};
    return pairs_.find(symbol.id, symbols[static_cast<std::size_t>(symbol.next)].id);
  };
  const auto wait = [&](std::int32_t at) {
    const PairTable::Merge merge = merge_at(at);
    if (merge.rank == PairTable::kNoRank) return false;
    queue.push_back(std::uint64_t{merge.rank} << 32U | static_cast<std::uint32_t>(at));
    return true;
  };
  symbols.resize(scratch.ids.size());
  for (std::int32_t i = 0; i < count; ++i)
    symbols[static_cast<std::size_t>(i)] = {scratch.ids[static_cast<std::size_t>(i)], i - 1, i + 1};
  queue.clear();
  for (std::int32_t i = 0; i < count; ++i) wait(i);
  std::ranges::make_heap(queue, std::greater{});
  while (!queue.empty()) {
    std::ranges::pop_heap(queue, std::greater{});
    const std::uint64_t first = queue.back();
    queue.pop_back();
    const auto at = static_cast<std::int32_t>(first & 0xffffffffU);
    const PairTable::Merge merge = merge_at(at);
    if (merge.rank != first >> 32U) continue;
    auto& left = symbols[static_cast<std::size_t>(at)];
    auto& right = symbols[static_cast<std::size_t>(left.next)];
    left.id = merge.id;
    left.next = right.next;
    right.id = -1;
    if (left.next != count) symbols[static_cast<std::size_t>(left.next)].previous = at;
    if (left.previous >= 0 && wait(left.previous)) std::ranges::push_heap(queue, std::greater{});
    if (wait(at)) std::ranges::push_heap(queue, std::greater{});
  }
  scratch.ids.clear();
  for (std::int32_t at = 0; at != count; at = symbols[static_cast<std::size_t>(at)].next) {
    scratch.ids.push_back(symbols[static_cast<std::size_t>(at)].id);
  }
}

}  // namespace loom::data
