// Long lines of a report for a terminal.
//
// Width    at most kTextColumns bytes a line. A word that is longer stays whole.
// Breaks   at spaces, behind a comma or semicolon where one is near the end of the line. Not after a colon, a
//          digit or in short parentheses: a key stays with its value, a number with its unit.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace loom {

inline constexpr std::size_t kTextColumns = 100;

// `text` with each of its long lines in several. All but the first are indented by `indent`; no break is in the first
// `indent` bytes of a line.
std::string wrapped(std::string_view text, std::size_t indent);

}  // namespace loom
