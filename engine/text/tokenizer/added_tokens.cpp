#include "engine/text/tokenizer/added_tokens.h"

#include <algorithm>
#include <set>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::data {
namespace {

constexpr std::size_t kMostContentBytes = 4096;

AddedToken read_token(const JsonNode& node) {
  node.allow_only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  AddedToken token;
  token.id = static_cast<std::int32_t>(node.at("id").as_integer(0, kMostTokens - 1));
  token.content = node.text("content");
  token.special = node.flag("special", false);
  token.single_word = node.flag("single_word", false);
  token.lstrip = node.flag("lstrip", false);
  token.rstrip = node.flag("rstrip", false);
  token.normalized = node.flag("normalized", !token.special);
  if (token.content.empty()) node.at("content").refuse("an empty token is nowhere; take it out");
  if (token.content.size() > kMostContentBytes) {
    node.at("content").refuse("it has {} bytes; a token may have {}", token.content.size(), kMostContentBytes);
  }
  return token;
}

}  // namespace

void TextSet::add(std::string_view text, std::int32_t value) {
  if (text.empty()) return;
  first_[static_cast<unsigned char>(text.front())] = true;
  std::size_t node = 0;
  for (const char byte : text) {
    const auto [next, made] = nodes_[node].next.try_emplace(static_cast<unsigned char>(byte), nodes_.size());
    node = next->second;
    if (made) nodes_.emplace_back();
  }
  nodes_[node].value = value;
}

TextSet::Found TextSet::find(std::string_view text, std::size_t from) const {
  if (empty()) return {};
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!first_[static_cast<unsigned char>(text[begin])]) continue;
    Found found;
    std::size_t node = 0;
    for (std::size_t at = begin; at < text.size(); ++at) {
      const auto next = nodes_[node].next.find(static_cast<unsigned char>(text[at]));
      if (next == nodes_[node].next.end()) break;
      node = next->second;
      if (nodes_[node].value >= 0) found = {begin, at + 1, nodes_[node].value};
    }
    if (found.value >= 0) return found;
  }
  return {};
}

AddedTokens::AddedTokens(const JsonNode& node, const Bpe& model, const Normalizer& normalizer) {
  std::set<std::string_view> seen;
  std::int32_t next_id = model.tokens();
  RegexScratch scratch;
  const std::vector<JsonNode> list = node.as_list();
  tokens_.reserve(list.size());
  for (const JsonNode& item : list) {
    const AddedToken& token = tokens_.emplace_back(read_token(item));
    if (!seen.insert(token.content).second) item.at("content").refuse("it is given twice; keep one");
    const auto known = model.find(token.content);
    const std::int32_t id = known ? *known : next_id;
    next_id = std::max(next_id, id + 1);
    if (token.id != id) {
      item.at("id").refuse("'{}' is {} {}; write {}", shown_text(token.content),
                           known ? "in the vocabulary as" : "not in the vocabulary, and the next free id is", id, id);
    }
    if (!known && model.token(id)) item.at("id").refuse("'{}' has it in the vocabulary", shown_text(*model.token(id)));
    const auto index = static_cast<std::int32_t>(tokens_.size() - 1);
    token.normalized ? normalized_.add(normalizer.apply(token.content, scratch), index)
                     : raw_.add(token.content, index);
  }
}

bool AddedTokens::touches_word(std::string_view text, const TextSet::Found& found) {
  const bool before = found.begin > 0 && is_word_character(character_before(text, found.begin).code);
  return before || (found.end < text.size() && is_word_character(character_at(text, found.end).code));
}

std::size_t AddedTokens::space_begin(std::string_view text, std::size_t end) {
  while (end > 0 && is_white_space(character_before(text, end).code)) end -= character_before(text, end).bytes;
  return end;
}

std::size_t AddedTokens::space_end(std::string_view text, std::size_t begin) {
  while (begin < text.size() && is_white_space(character_at(text, begin).code)) {
    begin += character_at(text, begin).bytes;
  }
  return begin;
}

}  // namespace loom::data
