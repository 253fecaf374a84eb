// How messages show text that the program did not write: values, keys and names of files, paths, flags.
//
// Escaped   what moves a cursor, colours a terminal, ends a line or turns the direction of reading: \n, \t, \x1b,
//           \u202e. A byte that is no UTF-8 is \xNN. A backslash stays, so that escaping twice changes nothing.
// Lines     a message is one line. Further lines of its own (the table of an out-of-memory error) begin with two
//           spaces; every other end of line came with a value and is escaped.
// Lengths   in bytes; text is cut between characters.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace loom {

inline constexpr std::size_t kShownBytes = 200;
inline constexpr std::size_t kMessageBytes = 16384;

// In one line, whole.
std::string escaped(std::string_view text);

// In one line, at most kShownBytes of it: "abc... (1048576 bytes)".
std::string shown_text(std::string_view text);

// A message as a terminal gets it: its own lines kept, its middle left out where it is longer than kMessageBytes.
std::string shown_message(std::string_view message);

// Position of the first byte that belongs to no UTF-8 character; nothing if there is none.
std::optional<std::size_t> invalid_utf8(std::string_view text);

}  // namespace loom
