#include "engine/talk/terminal_text.h"

#include <utility>

#include "engine/core/shown_text.h"

namespace loom::talk {
namespace {

// The bytes at the end of `text` that may be the beginning of a character: at most three.
std::size_t open_bytes(std::string_view text) {
  for (std::size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xc0u) == 0x80u) continue;
    const std::size_t needed = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return needed > back ? back : 0;
  }
  return 0;
}

std::string escaped_lines(std::string_view text) {
  std::string shown;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_of("\n\t", at), text.size());
    shown += escaped(text.substr(at, end - at));
    if (end < text.size()) shown += text[end];
    at = end + 1;
  }
  return shown;
}

}  // namespace

std::string TerminalText::push(std::string_view text) {
  held_ += text;
  const std::string whole = held_.substr(0, held_.size() - open_bytes(held_));
  held_.erase(0, whole.size());
  return escaped_lines(whole);
}

std::string TerminalText::finish() { return escaped_lines(std::exchange(held_, {})); }

}  // namespace loom::talk
