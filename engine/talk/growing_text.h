// GrowingText: the text behind a prompt, as its tokens arrive. Private to engine/talk.
//
// Threads  a plain value.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/talk/stop_words.h"
#include "engine/talk/words.h"

namespace loom::talk {

class GrowingText {
 public:
  // `words` outlives it.
  GrowingText(const Words& words, const Tokens& prompt, const std::vector<std::string>& stop_words);

  // The text that can be shown now: whole characters of a tokenizer, or a byte.
  std::string push(std::int32_t token);
  // The text that was held back.
  std::string finish();
  // Whether a stop word was found.
  bool stopped() const { return stop_words_.found(); }

 private:
  StopWords stop_words_;
  std::optional<data::TokenStream> stream_;  // none: bytes
};

}  // namespace loom::talk
