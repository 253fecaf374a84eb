// Text as in Python: characters are code points, and indices count them. Private to engine/text.
//
// Before   every text is UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/template/jinja/budget.h"
#include "engine/text/tokenizer/utf8.h"

namespace loom::data::jinja {

std::size_t character_count(std::string_view text);
// Where character `index` begins; the end of the text for an index behind the last.
std::size_t offset_of(std::string_view text, std::size_t index);
// Calls visit(character) with the bytes of each.
template <class Visit>
void for_each_character(std::string_view text, Visit&& visit) {
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view character = text.substr(at, character_at(text, at).bytes);
    at += character.size();
    visit(character);
  }
}

// The first or last position of `part` in `text`, from `from` on; npos if it is absent. The time grows with the sum of
// their lengths.
std::size_t find_first(std::string_view text, std::string_view part, std::size_t from = 0);
std::size_t find_last(std::string_view text, std::string_view part);

// str.isspace() of one character.
bool is_space(char32_t code);
bool is_printable(char32_t code);
// \w of a regular expression, for one character.
bool is_word(std::string_view character);
// Without white space at an end, or without `characters`, each of which is charged to the budget.
std::string_view strip_left(std::string_view text);
std::string_view strip_right(std::string_view text);
std::string_view strip_left(std::string_view text, std::string_view characters, Budget& budget);
std::string_view strip_right(std::string_view text, std::string_view characters, Budget& budget);

// Splits at white space, or at `separator`, which is not empty; at most `most` cuts, counted from the left or right.
// The budget is charged for the parts, not for the text.
std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator, std::size_t most,
                                    Budget& budget);
std::vector<std::string_view> split_from_right(std::string_view text, std::optional<std::string_view> separator,
                                               std::size_t most, Budget& budget);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends, Budget& budget);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
// Like str.title().
std::string title(std::string_view text);
bool is_cased(char32_t code);
bool is_upper(char32_t code);
bool is_lower(char32_t code);
bool is_alpha(char32_t code);
bool is_decimal(char32_t code);

// A text and a float in the form of repr().
std::string quoted(std::string_view text);
std::string float_text(double value);

}  // namespace loom::data::jinja
