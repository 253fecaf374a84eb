// The nearest right spelling of a word the user got wrong.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace loom {

// The candidate with the smallest edit distance to `word`, if that is at most a third of its length (and at least 2).
std::optional<std::string> nearest_spelling(std::string_view word, std::span<const std::string> candidates);

}  // namespace loom
