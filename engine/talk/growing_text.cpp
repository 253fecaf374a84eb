#include "engine/talk/growing_text.h"

namespace loom::talk {

GrowingText::GrowingText(const Words& words, const Tokens& prompt, const std::vector<std::string>& stop_words)
    : stop_words_(stop_words) {
  if (words.tokenizer() == nullptr) return;
  stream_.emplace(*words.tokenizer(), true);
  for (const std::int32_t token : prompt) stream_->push(token);
}

std::string GrowingText::push(std::int32_t token) {
  return stop_words_.push(stream_ ? stream_->push(token) : std::string(1, static_cast<char>(token)));
}

std::string GrowingText::finish() {
  std::string rest = stream_ ? stop_words_.push(stream_->finish()) : std::string();
  return rest + stop_words_.finish();
}

}  // namespace loom::talk
