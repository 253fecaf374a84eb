#include "engine/talk/stop_words.h"

#include <algorithm>
#include <utility>

namespace loom::talk {
namespace {

// The longest end of `text` that is a beginning of `word`, but not all of it.
std::size_t open_end(std::string_view text, std::string_view word) {
  for (std::size_t length = std::min(text.size(), word.size() - 1); length > 0; --length) {
    if (text.ends_with(word.substr(0, length))) return length;
  }
  return 0;
}

}  // namespace

std::string StopWords::push(std::string_view text) {
  if (found_) return {};
  held_ += text;
  std::size_t first = std::string::npos;
  for (const std::string& word : words_) first = std::min(first, held_.find(word));
  if (first != std::string::npos) {
    found_ = true;
    return std::exchange(held_, {}).substr(0, first);
  }
  std::size_t kept = 0;
  for (const std::string& word : words_) kept = std::max(kept, open_end(held_, word));
  std::string shown = held_.substr(0, held_.size() - kept);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopWords::finish() { return std::exchange(held_, {}); }

}  // namespace loom::talk
