// Metaspace: a visible character for a space, for pre-tokenizer and decoder of tokenizer.json.
// Private to engine/text.
#pragma once

#include <cstdint>
#include <string>

#include "engine/text/tokenizer/json_node.h"

namespace loom::data {

struct Metaspace {
  // Where one is put in front of a text: nowhere, at its beginning, or in each part between added tokens.
  enum class Prepend : std::uint8_t { kNever, kFirst, kAlways };

  std::string replacement;  // one character
  Prepend prepend = Prepend::kAlways;
  bool split = true;

  explicit Metaspace(const JsonNode& node);
};

}  // namespace loom::data
