#include "engine/core/shown_text.h"

#include <cstdint>
#include <fmt/format.h>
#include <iterator>

namespace loom {
namespace {

struct Character {
  char32_t code = 0;
  std::size_t bytes = 1;
  bool valid = true;
};

constexpr Character kInvalid{0, 1, false};

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xc0u) == 0x80u; }

// The character at the beginning of `text`, which is not empty.
Character decode(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  if (first < 0x80) return {first, 1};
  const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return kInvalid;
  char32_t code = first & (0x7fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if (!is_continuation(text[i])) return kInvalid;
    code = code << 6u | (static_cast<unsigned char>(text[i]) & 0x3fu);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  if (code < kLeast[bytes] || code > 0x10ffff || surrogate) return kInvalid;
  return {code, bytes};
}

bool is_control(char32_t code) { return code < 0x20 || (code >= 0x7f && code < 0xa0); }

// Ends of lines and marks of direction beyond ASCII, and the mark of byte order.
bool is_format(char32_t code) {
  return code == 0x061c || code == 0x200e || code == 0x200f || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069) || code == 0xfeff;
}

void append_escape(std::string& out, char32_t code) {
  if (code == '\n') {
    out += "\\n";
  } else if (code == '\r') {
    out += "\\r";
  } else if (code == '\t') {
    out += "\\t";
  } else if (code < 0x80) {
    fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<std::uint32_t>(code));
  } else {
    fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<std::uint32_t>(code));
  }
}

// Appends the character at `at`, escaped where it must be; returns where the next one begins.
std::size_t append_next(std::string& out, std::string_view text, std::size_t at) {
  const Character character = decode(text.substr(at));
  if (!character.valid) {
    fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<unsigned char>(text[at]));
  } else if (is_control(character.code) || is_format(character.code)) {
    append_escape(out, character.code);
  } else {
    out.append(text.substr(at, character.bytes));
  }
  return at + character.bytes;
}

// At most `bytes` from the front, cut between characters.
std::string_view front(std::string_view text, std::size_t bytes) {
  if (text.size() <= bytes) return text;
  while (bytes > 0 && is_continuation(text[bytes])) --bytes;
  return text.substr(0, bytes);
}

std::string_view back(std::string_view text, std::size_t bytes) {
  std::size_t begin = text.size() - bytes;
  while (begin < text.size() && is_continuation(text[begin])) ++begin;
  return text.substr(begin);
}

std::string escaped_lines(std::string_view message) {
  std::string out;
  for (std::size_t at = 0; at < message.size();) {
    if (message.substr(at).starts_with("\n  ")) {
      out += '\n';
      ++at;
    } else {
      at = append_next(out, message, at);
    }
  }
  return out;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) at = append_next(out, text, at);
  return out;
}

std::string shown_text(std::string_view text) {
  if (text.size() <= kShownBytes) return escaped(text);
  return fmt::format("{}... ({} bytes)", escaped(front(text, kShownBytes)), text.size());
}

std::string shown_message(std::string_view message) {
  if (message.size() <= kMessageBytes) return escaped_lines(message);
  const std::string_view begin = front(message, kMessageBytes / 4 * 3);
  const std::string_view end = back(message, kMessageBytes / 4);
  return fmt::format("{} ... ({} bytes left out) ... {}", escaped_lines(begin),
                     message.size() - begin.size() - end.size(), escaped_lines(end));
}

std::optional<std::size_t> invalid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Character character = decode(text.substr(at));
    if (!character.valid) return at;
    at += character.bytes;
  }
  return std::nullopt;
}

}  // namespace loom
