// How words are spelled: the nearest right spelling of a word the user got wrong, words in lower case, and words of a
// shell.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace loom {

// The candidate with the smallest edit distance to `word`, if that is at most a third of its length (and at least 2).
std::optional<std::string> nearest_spelling(std::string_view word, std::span<const std::string> candidates);

// ASCII letters become lower case; other bytes stay.
std::string lower_case(std::string_view text);

// `word` in one line as bash and zsh read it back: as it is, or in quotes if some character needs them.
std::string shell_word(std::string_view word);

}  // namespace loom
