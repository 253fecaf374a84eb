#include "engine/text/tokenizer/utf8.h"

#include <utf8proc.h>

#include <algorithm>

namespace loom::data {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

enum class Ending : std::uint8_t { kWhole, kBroken, kUnfinished };

struct Part {
  std::size_t bytes = 1;
  Ending ending = Ending::kWhole;
};

// The bounds of a second byte, which are narrower than 80..bf after some first ones.
struct SecondByte {
  unsigned char least = 0x80;
  unsigned char most = 0xbf;
};

SecondByte second_byte_after(unsigned char first) {
  switch (first) {
    case 0xe0:
      return {0xa0, 0xbf};
    case 0xed:
      return {0x80, 0x9f};
    case 0xf0:
      return {0x90, 0xbf};
    case 0xf4:
      return {0x80, 0x8f};
    default:
      return {};
  }
}

std::size_t length_by_first(unsigned char first) {
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return 2;
  if (first >= 0xe0 && first <= 0xef) return 3;
  if (first >= 0xf0 && first <= 0xf4) return 4;
  return 0;
}

// The character at the beginning of `bytes`, or the longest part that could have become one.
Part first_part(std::string_view bytes) {
  const auto first = static_cast<unsigned char>(bytes[0]);
  const std::size_t length = length_by_first(first);
  if (length == 0) return {1, Ending::kBroken};
  for (std::size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {i, Ending::kUnfinished};
    const auto byte = static_cast<unsigned char>(bytes[i]);
    const SecondByte allowed = i == 1 ? second_byte_after(first) : SecondByte{};
    if (byte < allowed.least || byte > allowed.most) return {i, Ending::kBroken};
  }
  return {length, Ending::kWhole};
}

// Other_Alphabetic outside the marks: letters in circles and squares.
bool is_enclosed_letter(char32_t code) {
  return (code >= 0x24b6 && code <= 0x24e9) || (code >= 0x1f130 && code <= 0x1f149) ||
         (code >= 0x1f150 && code <= 0x1f169) || (code >= 0x1f170 && code <= 0x1f189);
}

utf8proc_category_t category_of(char32_t code) { return utf8proc_category(static_cast<utf8proc_int32_t>(code)); }

}  // namespace

void append_character(std::string& text, char32_t code) {
  const auto add = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  const auto add_rest = [&](char32_t shifted) { add(0x80U | (shifted & 0x3fU)); };
  if (code < 0x80) return add(code);
  if (code < 0x800) {
    add(0xc0U | code >> 6U);
  } else if (code < 0x10000) {
    add(0xe0U | code >> 12U);
    add_rest(code >> 6U);
  } else {
    add(0xf0U | code >> 18U);
    add_rest(code >> 12U);
    add_rest(code >> 6U);
  }
  add_rest(code);
}

bool is_white_space(char32_t code) {
  if (code < 0x80) return code == ' ' || (code >= '\t' && code <= '\r');
  return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
         code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

bool is_word_character(char32_t code) {
  switch (category_of(code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return code == 0x200c || code == 0x200d || is_enclosed_letter(code);
  }
}

bool is_numeric(char32_t code) {
  const utf8proc_category_t category = category_of(code);
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
}

std::size_t unfinished_bytes(std::string_view bytes) {
  const std::size_t most = std::min<std::size_t>(3, bytes.size());
  for (std::size_t back = 1; back <= most; ++back) {
    const std::string_view tail = bytes.substr(bytes.size() - back);
    if ((static_cast<unsigned char>(tail[0]) & 0xc0U) == 0x80U) continue;
    const Part part = first_part(tail);
    return part.ending == Ending::kUnfinished && part.bytes == back ? back : 0;
  }
  return 0;
}

void append_repaired(std::string& text, std::string_view bytes) {
  while (!bytes.empty()) {
    const Part part = first_part(bytes);
    text.append(part.ending == Ending::kWhole ? bytes.substr(0, part.bytes) : kReplacement);
    bytes.remove_prefix(part.bytes);
  }
}

}  // namespace loom::data
