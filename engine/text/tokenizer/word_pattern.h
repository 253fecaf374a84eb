// WordPattern: the patterns of GPT-2, Qwen and Llama 3, matched by hand. Private to engine/text.
//
// They are recognised by their exact text; Oniguruma matches all other patterns. Each of them matches at every position
// of every text, so that its matches are adjacent. Letters, numbers and spaces are classified by the linked
// Oniguruma, which the constructor queries for each character.
// Threads  a constant.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace loom::data {

class WordPattern {
 public:
  // Nothing if `regex` is none of them.
  static std::optional<WordPattern> of(std::string_view regex);

  // The end of the match that begins at `at`, which is in the text and at a character.
  std::size_t match_end(std::string_view text, std::size_t at) const;

 private:
  enum class Kind : std::uint8_t { kGpt2, kQwen };
  enum class Class : std::uint8_t { kOther, kLetter, kNumber, kSpace, kNewline };
  struct Next {
    Class kind = Class::kOther;
    std::size_t bytes = 0;
  };

  WordPattern(Kind kind, int most_digits);
  Next next(std::string_view text, std::size_t at) const;
  std::size_t run_end(std::string_view text, std::size_t at, Class kind) const;
  std::size_t space_end(std::string_view text, std::size_t at, bool to_last_newline) const;
  std::size_t gpt2_end(std::string_view text, std::size_t at) const;
  std::size_t qwen_end(std::string_view text, std::size_t at) const;
  std::size_t digits_end(std::string_view text, std::size_t at) const;
  // 0 if no contraction begins there.
  std::size_t contraction_bytes(std::string_view text, std::size_t at) const;

  Kind kind_;
  int most_digits_;
  std::vector<Class> classes_;  // of the first 65536 characters
};

// The pattern of a ByteLevel pre-tokenizer with use_regex.
extern const std::string_view kGpt2Pattern;

}  // namespace loom::data
