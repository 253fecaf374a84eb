// TerminalText: a growing text, prepared for a terminal. Private to engine/talk.
//
// Escaped  cursor and colour sequences, and bytes that are not UTF-8: "\x1b", "\xff" (engine/core/shown_text.h).
//          Ends of lines and tabs stay.
// Held     a character whose bytes are incomplete.
// Threads  a plain value.
#pragma once

#include <string>
#include <string_view>

namespace loom::talk {

class TerminalText {
 public:
  // The text that can be shown now.
  std::string push(std::string_view text);
  // The text that was held.
  std::string finish();

 private:
  std::string held_;
};

}  // namespace loom::talk
