// Characters of text whose UTF-8 has been checked, and their kinds in the file format.
// Private to engine/text.
//
// White space and word characters are as in Rust's standard library and regular expressions, which Hugging
// Face's library uses if no pattern of the file decides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace loom::data {

struct Character {
  char32_t code = 0;
  std::size_t bytes = 1;
};

inline Character character_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const char32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xe0) return {(first & 0x1fU) << 6U | (byte(1) & 0x3fU), 2};
  if (first < 0xf0) return {(first & 0x0fU) << 12U | (byte(1) & 0x3fU) << 6U | (byte(2) & 0x3fU), 3};
  return {(first & 0x07U) << 18U | (byte(1) & 0x3fU) << 12U | (byte(2) & 0x3fU) << 6U | (byte(3) & 0x3fU), 4};
}

// The character that ends before `end`; `end` > 0.
inline Character character_before(std::string_view text, std::size_t end) {
  std::size_t at = end - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0U) == 0x80U) --at;
  return character_at(text, at);
}

void append_character(std::string& text, char32_t code);

bool is_white_space(char32_t code);
bool is_word_character(char32_t code);
// Nd, Nl, No.
bool is_numeric(char32_t code);

// The number of bytes at the end of `bytes` that begin an incomplete character; 0 to 3.
std::size_t unfinished_bytes(std::string_view bytes);
// `bytes` as text: each maximal part that begins no character, or breaks off in one, becomes U+FFFD.
void append_repaired(std::string& text, std::string_view bytes);

}  // namespace loom::data
