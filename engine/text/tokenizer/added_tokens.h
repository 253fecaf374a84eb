// AddedTokens: tokens that are matched in a text before any other step. Private to engine/text.
//
// Searched  tokens with normalized = false in the unchanged text, then, in each part between, tokens with
//           normalized = true (themselves normalized) in the normalized part. The leftmost match wins, and among these
//           the longest.
// Match     single_word: no word character touches it, else it does not match, and the search continues behind it.
//           lstrip and rstrip include the white space before and behind it.
// Ids       the vocabulary's; a token outside it gets the next number, as in Hugging Face's library.
// Threads   a constant.
// Errors    ConfigError with file and key: a conflicting id, a token that occurs twice.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer/bpe.h"
#include "engine/text/tokenizer/json_node.h"
#include "engine/text/tokenizer/normalizer.h"
#include "engine/text/tokenizer/utf8.h"

namespace loom::data {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = false;
};

// Finds a set of texts, leftmost and longest.
class TextSet {
 public:
  TextSet() { first_.fill(false); }
  void add(std::string_view text, std::int32_t value);
  bool empty() const { return nodes_.size() == 1; }

  struct Found {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::int32_t value = -1;  // -1: nothing
  };
  Found find(std::string_view text, std::size_t from) const;

 private:
  struct Node {
    std::map<unsigned char, std::size_t> next;
    std::int32_t value = -1;
  };
  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<bool, 256> first_{};
};

class AddedTokens {
 public:
  AddedTokens() = default;
  AddedTokens(const JsonNode& node, const Bpe& model, const Normalizer& normalizer);

  const std::vector<AddedToken>& all() const { return tokens_; }
  bool any_normalized() const { return !normalized_.empty(); }

  // Visits the matches and the parts between them, in order: visit(text, begin, nullptr) and
  // visit(text of the match, begin, token). `split_special`: special tokens are ordinary text.
  template <class Visit>
  void each_part(std::string_view text, bool normalized, bool split_special, Visit&& visit) const {
    const TextSet& set = normalized ? normalized_ : raw_;
    std::size_t done = 0;
    for (auto found = set.find(text, 0); found.value >= 0; found = set.find(text, found.end)) {
      const AddedToken& token = tokens_[static_cast<std::size_t>(found.value)];
      if ((split_special && token.special) || (token.single_word && touches_word(text, found))) continue;
      const std::size_t begin = token.lstrip ? std::max(space_begin(text, found.begin), done) : found.begin;
      const std::size_t end = token.rstrip ? space_end(text, found.end) : found.end;
      if (done < begin) visit(text.substr(done, begin - done), done, nullptr);
      visit(text.substr(begin, end - begin), begin, &token);
      done = end;
    }
    if (done < text.size()) visit(text.substr(done), done, nullptr);
  }

 private:
  static bool touches_word(std::string_view text, const TextSet::Found& found);
  static std::size_t space_begin(std::string_view text, std::size_t end);
  static std::size_t space_end(std::string_view text, std::size_t begin);

  std::vector<AddedToken> tokens_;
  TextSet raw_;
  TextSet normalized_;
};

}  // namespace loom::data
