#include "engine/text/tokenizer/splitter.h"

#include <algorithm>
#include <utility>

#include "engine/text/tokenizer/utf8.h"

namespace loom::data {
namespace {

using Piece = Splitter::Piece;

std::vector<Piece> without_matches(std::vector<Piece> pieces) {
  std::erase_if(pieces, [](const Piece& piece) { return piece.match; });
  return pieces;
}

std::vector<Piece> contiguous(const std::vector<Piece>& pieces) {
  std::vector<Piece> runs;
  for (const Piece& piece : pieces) {
    if (!runs.empty() && runs.back().match == piece.match) {
      runs.back().range.end = piece.range.end;
    } else {
      runs.push_back(piece);
    }
  }
  return runs;
}

// A match joins what was before it, unless that is a match too.
std::vector<Piece> merged_with_previous(const std::vector<Piece>& pieces) {
  std::vector<Piece> merged;
  bool after_match = false;
  for (const Piece& piece : pieces) {
    if (piece.match && !after_match && !merged.empty()) {
      merged.back().range.end = piece.range.end;
    } else {
      merged.push_back(piece);
    }
    after_match = piece.match;
  }
  return merged;
}

std::vector<Piece> merged_with_next(const std::vector<Piece>& pieces) {
  std::vector<Piece> merged;
  bool before_match = false;
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
    if (piece->match && !before_match && !merged.empty()) {
      merged.back().range.begin = piece->range.begin;
    } else {
      merged.push_back(*piece);
    }
    before_match = piece->match;
  }
  std::ranges::reverse(merged);
  return merged;
}

}  // namespace

Pattern Pattern::regex(std::string_view pattern, std::string where) {
  Pattern made;
  made.regex_.emplace(pattern, std::move(where));
  return made;
}

Pattern Pattern::literal(std::string_view text) {
  Pattern made;
  made.literal_ = text;
  return made;
}

std::size_t Pattern::after_character(std::string_view text, std::size_t at) {
  return at < text.size() ? character_at(text, at).bytes : 1;
}

std::vector<Piece> joined(std::vector<Piece> pieces, Behavior behavior) {
  switch (behavior) {
    case Behavior::kRemoved:
      return without_matches(std::move(pieces));
    case Behavior::kContiguous:
      return contiguous(pieces);
    case Behavior::kMergedWithPrevious:
      return merged_with_previous(pieces);
    case Behavior::kMergedWithNext:
      return merged_with_next(pieces);
    case Behavior::kIsolated:
      break;
  }
  return pieces;
}

Splitter::Splitter(Pattern pattern, std::optional<WordPattern> fast, Behavior behavior, bool invert)
    : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {
  if (behavior == Behavior::kIsolated) fast_ = std::move(fast);
}

std::vector<Piece> Splitter::pieces(std::string_view text, RegexScratch& scratch) const {
  std::vector<Piece> found;
  std::size_t done = 0;
  pattern_.each_match(text, scratch, [&](Range match) {
    if (done != match.begin) found.push_back({{done, match.begin}, invert_});
    found.push_back({match, !invert_});
    done = match.end;
  });
  if (done != text.size()) found.push_back({{done, text.size()}, invert_});
  found = joined(std::move(found), behavior_);
  std::erase_if(found, [](const Piece& piece) { return piece.range.begin == piece.range.end; });
  return found;
}

}  // namespace loom::data
