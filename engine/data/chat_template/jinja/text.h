// Text as Python sees it: characters are code points, indices count them. Private to engine/data.
//
// Before   every text is UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace loom::data::jinja {

std::size_t character_count(std::string_view text);
// Where character `index` begins; the end of the text for one that is behind the last.
std::size_t offset_of(std::string_view text, std::size_t index);
std::vector<std::string_view> characters_of(std::string_view text);

// str.isspace() of one character.
bool is_space(char32_t code);
bool is_printable(char32_t code);
// Of one character: \w of a regular expression.
bool is_word(std::string_view character);
// `characters`: those that go; without, white space.
std::string_view strip_left(std::string_view text, std::optional<std::string_view> characters = {});
std::string_view strip_right(std::string_view text, std::optional<std::string_view> characters = {});

// At white space, or at `separator`, which is not empty; at most `most` cuts, counted from the left or from the right.
std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator, std::size_t most);
std::vector<std::string_view> split_from_right(std::string_view text, std::optional<std::string_view> separator,
                                               std::size_t most);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends = false);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
// As str.title().
std::string title(std::string_view text);
bool is_cased(char32_t code);
bool is_upper(char32_t code);
bool is_lower(char32_t code);
bool is_alpha(char32_t code);
bool is_decimal(char32_t code);

// As repr() writes a text and a float.
std::string quoted(std::string_view text);
std::string float_text(double value);

}  // namespace loom::data::jinja
