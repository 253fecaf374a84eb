// The characters that byte-level tokenizers write for bytes. Private to engine/text.
//
// 33..126, 161..172 and 174..255 represent themselves; the other 68 bytes are U+0100, U+0101, ... in their order.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace loom::data {

char32_t character_of_byte(unsigned char byte);
std::optional<unsigned char> byte_of_character(char32_t code);

// The bytes that `token` represents; nothing if it contains another character.
std::optional<std::string> bytes_of_token(std::string_view token);

}  // namespace loom::data
