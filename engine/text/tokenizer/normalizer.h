// Normalizer: how tokenizer.json changes a text before it is cut. Private to engine/text.
//
// Read     NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip, Sequence, null.
// Bounds   1000 steps; of a text of n bytes Replace makes at most 1 MiB + 64 n. Time and memory grow with the text's
//          length times the steps, whatever is in it.
// Threads  as a constant; a RegexScratch belongs to one thread.
// Errors   ConfigError with file and key for another type, and where a bound is reached.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/text/tokenizer/json_node.h"
#include "engine/text/tokenizer/splitter.h"

namespace loom::data {

// {"type": "Replace", "pattern": PATTERN, "content": TEXT}, of normalizers and decoders.
struct Replacement {
  explicit Replacement(const JsonNode& node);

  // `text` with the content for each match. ConfigError where that has more than `most` bytes.
  std::string applied_to(std::string_view text, std::size_t most, RegexScratch& scratch) const;

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
  using Step = std::variant<Form, Lowercase, Prepend, Replacement, Strip>;

  void add(const JsonNode& node);
  static std::string changed(const Form& form, std::string text);
  static std::string changed(const Lowercase& step, std::string text);
  static std::string changed(const Prepend& step, std::string text);
  static std::string changed(const Replacement& step, std::string text);
  static std::string changed(const Strip& step, std::string text);

  std::vector<Step> steps_;
};

// {"String": TEXT} or {"Regex": PATTERN}.
Pattern read_pattern(const JsonNode& node);

// How many bytes the steps of a file may make of a text.
std::size_t most_bytes_made_of(std::size_t bytes);
// Refuses a part of the file that has as many steps as it may have, and `node` besides.
void check_steps(const JsonNode& node, std::size_t steps);

}  // namespace loom::data
