#include "engine/text/tokenizer/byte_characters.h"

#include <array>

#include "engine/text/tokenizer/utf8.h"

namespace loom::data {
namespace {

constexpr char32_t kFirstMoved = 0x100;
constexpr std::size_t kMoved = 68;

constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

struct Map {
  std::array<char32_t, 256> of_byte{};
  std::array<unsigned char, kMoved> moved{};
};

constexpr Map make_map() {
  Map map;
  std::size_t next = 0;
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (stands_for_itself(byte)) {
      map.of_byte[byte] = byte;
    } else {
      map.of_byte[byte] = kFirstMoved + next;
      map.moved[next++] = static_cast<unsigned char>(byte);
    }
  }
  return map;
}

constexpr Map kMap = make_map();

}  // namespace

char32_t character_of_byte(unsigned char byte) { return kMap.of_byte[byte]; }

std::optional<unsigned char> byte_of_character(char32_t code) {
  if (code < 256 && stands_for_itself(code)) return static_cast<unsigned char>(code);
  if (code >= kFirstMoved && code < kFirstMoved + kMoved) return kMap.moved[code - kFirstMoved];
  return std::nullopt;
}

std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  for (std::size_t at = 0; at < token.size();) {
    const Character character = character_at(token, at);
    const auto byte = byte_of_character(character.code);
    if (!byte) return std::nullopt;
    bytes.push_back(static_cast<char>(*byte));
    at += character.bytes;
  }
  return bytes;
}

}  // namespace loom::data
