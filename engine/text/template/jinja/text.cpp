#include "engine/text/template/jinja/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <iterator>

#include "engine/text/template/jinja/casing.h"
#include "engine/text/tokenizer/utf8.h"

namespace loom::data::jinja {
namespace {

constexpr char32_t kCapitalSigma = 0x3a3;
constexpr char32_t kFinalSigma = 0x3c2;
constexpr char32_t kDottedI = 0x130;

bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xc0U) == 0x80U; }

utf8proc_category_t category(char32_t code) { return utf8proc_category(static_cast<utf8proc_int32_t>(code)); }

template <class Goes>
std::string_view without_left(std::string_view text, Goes&& goes) {
  while (!text.empty()) {
    const Character first = character_at(text, 0);
    if (!goes(first, text.substr(0, first.bytes))) break;
    text.remove_prefix(first.bytes);
  }
  return text;
}

template <class Goes>
std::string_view without_right(std::string_view text, Goes&& goes) {
  while (!text.empty()) {
    const Character last = character_before(text, text.size());
    if (!goes(last, text.substr(text.size() - last.bytes))) break;
    text.remove_suffix(last.bytes);
  }
  return text;
}

bool is_white(const Character& character, std::string_view) { return is_space(character.code); }

auto one_of(std::string_view characters, Budget& budget) {
  return [characters, &budget](const Character&, std::string_view bytes) {
    budget.text(characters.size());
    return characters.find(bytes) != std::string_view::npos;
  };
}

std::string_view skip_spaces(std::string_view text) { return strip_left(text); }

void append_upper(std::string& to, char32_t code) {
  const auto* const found = std::ranges::lower_bound(kLongUpper, code, {}, &LongUpper::code);
  if (found != std::end(kLongUpper) && found->code == code) {
    to += found->upper;
  } else {
    append_character(to, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code))));
  }
}

void append_title(std::string& to, char32_t code) {
  const auto* const found = std::ranges::lower_bound(kLongUpper, code, {}, &LongUpper::code);
  if (found != std::end(kLongUpper) && found->code == code) {
    const Character first = character_at(found->upper, 0);
    to += found->upper.substr(0, first.bytes);
    to += lower(found->upper.substr(first.bytes));
  } else {
    append_character(to, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(code))));
  }
}

// Characters that do not count when one asks whether a word goes on.
bool is_case_ignorable(char32_t code) {
  switch (category(code)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return std::u32string_view(U"'.:\u00b7\u2018\u2019\u2024\u2027").find(code) != std::u32string_view::npos;
  }
}

bool cased_follows(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const Character next = character_at(text, at);
    if (!is_case_ignorable(next.code)) return is_cased(next.code);
    at += next.bytes;
  }
  return false;
}

bool cased_precedes(std::string_view text, std::size_t end) {
  while (end > 0) {
    const Character before = character_before(text, end);
    if (!is_case_ignorable(before.code)) return is_cased(before.code);
    end -= before.bytes;
  }
  return false;
}

void append_lower(std::string& to, std::string_view text, std::size_t at, const Character& character) {
  if (character.code == kDottedI) {
    to += "i\u0307";
  } else if (character.code == kCapitalSigma && cased_precedes(text, at) &&
             !cased_follows(text, at + character.bytes)) {
    append_character(to, kFinalSigma);
  } else {
    append_character(to, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character.code))));
  }
}

// \r\n, \n, \r, \v, \f, \x1c to \x1e, \x85, the separators of lines and paragraphs.
bool ends_line(char32_t code) {
  return (code >= 0x0a && code <= 0x0d) || (code >= 0x1c && code <= 0x1e) || code == 0x85 || code == 0x2028 ||
         code == 0x2029;
}

}  // namespace

std::size_t character_count(std::string_view text) {
  return text.size() - static_cast<std::size_t>(std::ranges::count_if(text, continues));
}

std::size_t offset_of(std::string_view text, std::size_t index) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (continues(text[at])) continue;
    if (index-- == 0) return at;
  }
  return text.size();
}

std::size_t find_first(std::string_view text, std::string_view part, std::size_t from) {
  if (part.empty()) return from <= text.size() ? from : std::string_view::npos;
  if (from >= text.size()) return std::string_view::npos;
  const void* found = ::memmem(text.data() + from, text.size() - from, part.data(), part.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

// Knuth, Morris and Pratt, backwards.
std::size_t find_last(std::string_view text, std::string_view part) {
  const auto at = [](std::string_view of, std::size_t back) { return of[of.size() - 1 - back]; };
  std::vector<std::uint32_t> border(part.size() + 1, 0);  // of the part's last i bytes, i > 0
  const auto longer = [&](std::size_t known, char byte) {
    while (known > 0 && at(part, known) != byte) known = border[known];
    return at(part, known) == byte ? known + 1 : 0;
  };
  if (part.size() > text.size()) return std::string_view::npos;
  if (part.empty()) return text.size();
  for (std::size_t i = 1; i < part.size(); ++i)
    border[i + 1] = static_cast<std::uint32_t>(longer(border[i], at(part, i)));
  std::size_t known = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    known = longer(known, at(text, i));
    if (known == part.size()) return text.size() - 1 - i;
  }
  return std::string_view::npos;
}

bool is_space(char32_t code) {
  return (code >= 0x09 && code <= 0x0d) || (code >= 0x1c && code <= 0x20) || code == 0x85 || code == 0xa0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 || code == 0x202f ||
         code == 0x205f || code == 0x3000;
}

bool is_printable(char32_t code) {
  if (code == ' ') return true;
  switch (category(code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_word(std::string_view character) { return is_word_character(character_at(character, 0).code); }

std::string_view strip_left(std::string_view text) { return without_left(text, is_white); }
std::string_view strip_right(std::string_view text) { return without_right(text, is_white); }
std::string_view strip_left(std::string_view text, std::string_view characters, Budget& budget) {
  return without_left(text, one_of(characters, budget));
}
std::string_view strip_right(std::string_view text, std::string_view characters, Budget& budget) {
  return without_right(text, one_of(characters, budget));
}

std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator, std::size_t most,
                                    Budget& budget) {
  std::vector<std::string_view> parts;
  if (!separator) text = skip_spaces(text);
  while (separator || !text.empty()) {
    budget.values(1);
    std::size_t end = std::string_view::npos;
    if (parts.size() < most) {
      if (separator) {
        end = find_first(text, *separator);
      } else {
        for (std::size_t at = 0; at < text.size() && end == std::string_view::npos;) {
          const Character character = character_at(text, at);
          if (is_space(character.code)) end = at;
          at += character.bytes;
        }
      }
    }
    if (end == std::string_view::npos) {
      parts.push_back(text);
      break;
    }
    parts.push_back(text.substr(0, end));
    text = separator ? text.substr(end + separator->size()) : skip_spaces(text.substr(end));
  }
  return parts;
}

std::vector<std::string_view> split_from_right(std::string_view text, std::optional<std::string_view> separator,
                                               std::size_t most, Budget& budget) {
  std::vector<std::string_view> parts;
  if (!separator) text = strip_right(text);
  while (separator || !text.empty()) {
    budget.values(1);
    std::size_t begin = std::string_view::npos;
    std::size_t cut = 0;
    if (parts.size() < most) {
      if (separator) {
        cut = find_last(text, *separator);
        if (cut != std::string_view::npos) begin = cut + separator->size();
      } else {
        for (std::size_t end = text.size(); end > 0 && begin == std::string_view::npos;) {
          const Character character = character_before(text, end);
          if (is_space(character.code)) begin = end;
          end -= character.bytes;
          cut = end;
        }
      }
    }
    if (begin == std::string_view::npos) {
      parts.push_back(text);
      break;
    }
    parts.push_back(text.substr(begin));
    text = separator ? text.substr(0, cut) : strip_right(text.substr(0, cut));
  }
  std::ranges::reverse(parts);
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends, Budget& budget) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    std::size_t next = at + character.bytes;
    if (ends_line(character.code)) {
      budget.values(1);
      if (text.substr(at, 2) == "\r\n") ++next;
      lines.push_back(text.substr(begin, (keep_ends ? next : at) - begin));
      begin = next;
    }
    at = next;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::string upper(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    append_upper(result, character.code);
    at += character.bytes;
  }
  return result;
}

std::string lower(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    append_lower(result, text, at, character);
    at += character.bytes;
  }
  return result;
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return "";
  std::string result;
  const Character first = character_at(text, 0);
  append_title(result, first.code);
  for (std::size_t at = first.bytes; at < text.size();) {
    const Character character = character_at(text, at);
    append_lower(result, text, at, character);
    at += character.bytes;
  }
  return result;
}

std::string title(std::string_view text) {
  std::string result;
  bool in_word = false;
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    if (in_word) {
      append_lower(result, text, at, character);
    } else {
      append_title(result, character.code);
    }
    in_word = is_cased(character.code);
    at += character.bytes;
  }
  return result;
}

bool is_upper(char32_t code) { return category(code) == UTF8PROC_CATEGORY_LU; }
bool is_lower(char32_t code) { return category(code) == UTF8PROC_CATEGORY_LL; }
bool is_cased(char32_t code) { return is_upper(code) || is_lower(code) || category(code) == UTF8PROC_CATEGORY_LT; }
bool is_decimal(char32_t code) { return category(code) == UTF8PROC_CATEGORY_ND; }

bool is_alpha(char32_t code) {
  const auto kind = category(code);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

std::string quoted(std::string_view text) {
  const char quote = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string result(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    const char32_t code = character.code;
    if (code == '\\' || code == static_cast<unsigned char>(quote)) {
      result += '\\';
      result += static_cast<char>(code);
    } else if (code == '\n' || code == '\r' || code == '\t') {
      result += code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t";
    } else if (is_printable(code)) {
      result += text.substr(at, character.bytes);
    } else if (code < 0x100) {
      result += fmt::format("\\x{:02x}", static_cast<std::uint32_t>(code));
    } else if (code < 0x10000) {
      result += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(code));
    } else {
      result += fmt::format("\\U{:08x}", static_cast<std::uint32_t>(code));
    }
    at += character.bytes;
  }
  result += quote;
  return result;
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(std::begin(buffer), std::end(buffer), value, std::chars_format::scientific).ptr;
  const std::string_view shortest(buffer, static_cast<std::size_t>(end - buffer));
  const int exponent = std::stoi(std::string(shortest.substr(shortest.find('e') + 1)));
  if (exponent < -4 || exponent >= 16) return std::string(shortest);
  const auto fixed = std::to_chars(std::begin(buffer), std::end(buffer), value, std::chars_format::fixed).ptr;
  std::string text(buffer, fixed);
  if (text.find('.') == std::string::npos) text.append(".0");
  return text;
}

}  // namespace loom::data::jinja
