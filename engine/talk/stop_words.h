// StopWords: a text that grows, cut at the first stop word. Private to engine/talk.
//
// Threads  a plain value.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace loom::talk {

class StopWords {
 public:
  // None of them empty.
  explicit StopWords(std::vector<std::string> words) : words_(std::move(words)) {}

  // The part that can be shown now: a possible beginning of a stop word is held back, and nothing follows from the
  // stop word on.
  std::string push(std::string_view text);
  // The text that was held back; nothing after a stop word.
  std::string finish();
  bool found() const { return found_; }

 private:
  const std::vector<std::string> words_;
  std::string held_;
  bool found_ = false;
};

}  // namespace loom::talk
