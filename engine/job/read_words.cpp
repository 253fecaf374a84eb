#include "engine/job/read_words.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/core/spelling.h"

namespace loom::job {

const std::string& read_text(std::string_view flag, const std::string& text) {
  if (text.empty()) config_error("{} is empty; give it a value or leave it out", flag);
  return text;
}

const std::string& read_choice(std::string_view flag, const std::string& text,
                               const std::vector<std::string>& choices) {
  if (std::ranges::find(choices, text) != choices.end()) return text;
  const auto nearest = nearest_spelling(text, choices);
  config_error("{} is {}; use {}{}", flag, shown_text(text), fmt::join(choices, ", "),
               nearest ? fmt::format(" (did you mean {}?)", *nearest) : "");
}

}  // namespace loom::job
