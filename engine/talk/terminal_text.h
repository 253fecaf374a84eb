// TerminalText: a text that grows, as a terminal gets it. Private to engine/talk.
//
// Escaped  what moves the cursor or colours, and bytes that are no UTF-8: "\x1b", "\xff" (engine/core/shown_text.h).
//          Ends of lines and tabs stay.
// Held     a character of which not all bytes have come.
// Threads  a plain value.
#pragma once

#include <string>
#include <string_view>

namespace loom::talk {

class TerminalText {
 public:
  // What can be shown now.
  std::string push(std::string_view text);
  // What was held.
  std::string finish();

 private:
  std::string held_;
};

}  // namespace loom::talk
