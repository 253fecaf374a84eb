// Normalizer: how tokenizer.json changes a text before it is cut. Private to engine/data.
//
// Read     NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip, Sequence, null.
// Threads  as a constant; a RegexScratch belongs to one thread.
// Errors   ConfigError with file and key for another type.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/data/tokenizer/json_node.h"
#include "engine/data/tokenizer/splitter.h"

namespace loom::data {

class Normalizer {
 public:
  // Changes nothing.
  Normalizer() = default;
  explicit Normalizer(const JsonNode& node) { add(node); }

  bool changes_nothing() const { return steps_.empty(); }
  std::string apply(std::string_view text, RegexScratch& scratch) const;

 private:
  enum class Form : std::uint8_t { kNfc, kNfd, kNfkc, kNfkd };
  struct Lowercase {};
  struct Prepend {
    std::string text;
  };
  struct Replace {
    Pattern pattern;
    std::string content;
  };
  struct Strip {
    bool left = true;
    bool right = true;
  };
  using Step = std::variant<Form, Lowercase, Prepend, Replace, Strip>;

  void add(const JsonNode& node);
  static std::string changed(const Form& form, std::string text, RegexScratch& scratch);
  static std::string changed(const Lowercase& step, std::string text, RegexScratch& scratch);
  static std::string changed(const Prepend& step, std::string text, RegexScratch& scratch);
  static std::string changed(const Replace& step, std::string text, RegexScratch& scratch);
  static std::string changed(const Strip& step, std::string text, RegexScratch& scratch);

  std::vector<Step> steps_;
};

// {"String": TEXT} or {"Regex": PATTERN}.
Pattern read_pattern(const JsonNode& node);

// `text` with each match of `pattern` put for `content`.
std::string replaced(std::string_view text, const Pattern& pattern, std::string_view content, RegexScratch& scratch);

}  // namespace loom::data
