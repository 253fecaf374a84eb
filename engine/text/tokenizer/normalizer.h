// Normalizer: the changes of tokenizer.json to a text before it is split. Private to engine/text.
//
// Read     NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip, Sequence, null.
// Bounds   100 steps, which produce at most 64 KiB + 32 n bytes from a text of n bytes, in total. Time and
//          memory grow with the text's length, whatever its contents.
// Threads  a constant; a RegexScratch belongs to one thread.
// Errors   ConfigError with file and key for another type, and if a bound is reached.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/text/tokenizer/json_node.h"
#include "engine/text/tokenizer/splitter.h"

namespace loom::data {

// The bytes that the steps of a file may produce from a text.
class Growth {
 public:
  explicit Growth(std::size_t text_bytes) : most_((std::size_t{1} << 16U) + 32 * text_bytes), left_(most_) {}

  // The step at `where` produces this many more. ConfigError if they are too many.
  void count(std::size_t bytes, const std::string& where);

 private:
  std::size_t most_;
  std::size_t left_;
};

// {"type": "Replace", "pattern": PATTERN, "content": TEXT}, in normalizers and decoders.
struct Replacement {
  explicit Replacement(const JsonNode& node);

  // `text` with the content for each match.
  std::string applied_to(std::string_view text, Growth& growth, RegexScratch& scratch) const;

  Pattern pattern;
  std::string content;
  std::string where;
};

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
  struct Strip {
    bool left = true;
    bool right = true;
  };
  struct Step {
    std::variant<Form, Lowercase, Prepend, Replacement, Strip> change;
    std::string where;
  };

  void add(const JsonNode& node);
  static std::string changed(const Form& form, std::string text);
  static std::string changed(const Lowercase& step, std::string text);
  static std::string changed(const Prepend& step, std::string text);
  static std::string changed(const Strip& step, std::string text);

  std::vector<Step> steps_;
};

// {"String": TEXT} or {"Regex": PATTERN}.
Pattern read_pattern(const JsonNode& node);

// Refuses `node` if its part of the file already has the maximum number of steps.
void check_steps(const JsonNode& node, std::size_t steps);

}  // namespace loom::data
