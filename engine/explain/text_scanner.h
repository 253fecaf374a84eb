// TextScanner: reads a text of unknown origin from left to right. Private to engine/explain.
//
// Steps    each reads one thing behind the place reached. A step that fails leaves the place where it was.
// Time     linear in the text for each step; nothing is searched twice.
// Numbers  those that do not fit are no numbers.
// Threads  a value; its text outlives it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "engine/explain/error_report.h"

namespace loom::explain {

class TextScanner {
 public:
  explicit TextScanner(std::string_view text) : rest_(text) {}

  std::string_view rest() const { return rest_; }
  // Passes the literal, if it is next.
  bool take(std::string_view literal);
  // Passes all up to the end of the next occurrence of the literal.
  bool skip_past(std::string_view literal);
  // The text before the next occurrence of the literal, which is passed too; none if it is longer than `most` bytes.
  std::optional<std::string_view> until(std::string_view literal, std::size_t most = 256);
  // Digits.
  std::optional<std::int64_t> whole();
  // "22.78 GiB", "0 bytes".
  std::optional<ByteFigure> bytes();

 private:
  std::string_view rest_;
};

// The whole number behind the literal in a text, wherever it occurs first; none without it.
std::optional<std::int64_t> whole_behind(std::string_view text, std::string_view literal);

}  // namespace loom::explain
