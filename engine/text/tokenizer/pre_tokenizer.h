// PreTokenizer: splits a text into the pieces that are encoded separately, by tokenizer.json. Private to engine/text.
//
// Read     ByteLevel (as the last one), Split, Digits, Metaspace, Sequence, null.
// Threads  a constant; a RegexScratch belongs to one thread.
// Errors   ConfigError with file and key for another type.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/text/tokenizer/metaspace.h"
#include "engine/text/tokenizer/splitter.h"

namespace loom::data {

class PreTokenizer {
 public:
  // One piece, the whole text.
  PreTokenizer() = default;
  explicit PreTokenizer(const JsonNode& node) { add(node); }

  // Pieces are bytes; tokens are written in the characters that represent them.
  bool byte_level() const { return byte_level_; }

  // Visits the pieces of `text` in their order, none of them empty; they are valid during the call. `at_start`: the
  // text is the beginning of the encoded input.
  template <class Visit>
  void each_piece(std::string_view text, bool at_start, RegexScratch& scratch, Visit&& visit) const {
    run(0, text, at_start, scratch, visit);
  }

 private:
  struct PrefixSpace {};
  struct Digits {
    bool individual = false;
  };
  using Step = std::variant<Splitter, PrefixSpace, Digits, Metaspace>;

  void add(const JsonNode& node);
  void add_byte_level(const JsonNode& node);
  void add_split(const JsonNode& node);

  template <class Visit>
  void run(std::size_t step, std::string_view text, bool at_start, RegexScratch& scratch, Visit& visit) const {
    if (text.empty()) return;
    if (step == steps_.size()) return visit(text);
    const auto go_on = [&](std::string_view piece, bool first) {
      run(step + 1, piece, at_start && first, scratch, visit);
    };
    if (const auto* splitter = std::get_if<Splitter>(&steps_[step])) {
      splitter->each_piece(text, scratch, [&](Range piece) {
        go_on(text.substr(piece.begin, piece.end - piece.begin), piece.begin == 0);
      });
    } else {
      run_rare(steps_[step], text, at_start, go_on);
    }
  }
  static void run_rare(const Step& step, std::string_view text, bool at_start,
                       const std::function<void(std::string_view, bool)>& visit);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace loom::data
