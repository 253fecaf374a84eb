// Splitter: splits a text where a pattern matches, by "Split" of tokenizer.json. Private to engine/text.
//
// Behaviours  isolated: matches and the parts between them are pieces; removed: the matches are left out; contiguous:
//             matches side by side are one piece; merged with previous or next: a match joins its neighbour.
// invert      the parts between the matches count as the matches.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/regex/regex.h"
#include "engine/text/tokenizer/word_pattern.h"

namespace loom::data {

using regex::Range;
using regex::Regex;
using regex::RegexScratch;

enum class Behavior : std::uint8_t { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// A search pattern: a regex, or a literal text.
class Pattern {
 public:
  static Pattern regex(std::string_view pattern, std::string where);
  static Pattern literal(std::string_view text);

  // The consecutive matches from the left; empty ones as in Rust's find_iter.
  template <class Found>
  void each_match(std::string_view text, RegexScratch& scratch, Found&& found) const {
    if (regex_) return each_regex_match(text, scratch, found);
    for (std::size_t at = text.find(literal_); at != std::string_view::npos;) {
      found(Range{at, at + literal_.size()});
      at = text.find(literal_, at + literal_.size());
    }
  }

 private:
  template <class Found>
  void each_regex_match(std::string_view text, RegexScratch& scratch, Found&& found) const {
    std::optional<std::size_t> last;
    for (std::size_t from = 0; from <= text.size();) {
      const auto match = regex_->search(text, from, scratch);
      if (!match) return;
      if (match->begin == match->end && last == match->end) {
        from += after_character(text, from);
        continue;
      }
      from = match->end;
      last = match->end;
      found(*match);
    }
  }
  static std::size_t after_character(std::string_view text, std::size_t at);

  std::optional<Regex> regex_;
  std::string literal_;
};

class Splitter {
 public:
  struct Piece {
    Range range;
    bool match = false;
  };

  // `fast` matches like `pattern`, everywhere.
  Splitter(Pattern pattern, std::optional<WordPattern> fast, Behavior behavior, bool invert);

  // The pieces of a text that is not empty, none of them empty.
  template <class Visit>
  void each_piece(std::string_view text, RegexScratch& scratch, Visit&& visit) const {
    if (fast_) {
      for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = fast_->match_end(text, at);
        visit(Range{at, end});
        at = end;
      }
      return;
    }
    for (const Piece& piece : pieces(text, scratch)) visit(piece.range);
  }

 private:
  std::vector<Piece> pieces(std::string_view text, RegexScratch& scratch) const;

  Pattern pattern_;
  std::optional<WordPattern> fast_;
  Behavior behavior_;
  bool invert_;
};

// Joins the pieces of a text, matches and gaps in order, by `behavior`.
std::vector<Splitter::Piece> joined(std::vector<Splitter::Piece> pieces, Behavior behavior);

}  // namespace loom::data
