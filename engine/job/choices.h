// The words of keys that are a choice, each enumeration's in one place. Private to engine/job.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "engine/job/value.h"

namespace loom::job {

// Words and meanings, in the order of the help. Of several words with one meaning, the first is written.
template <class Choice>
using ChoiceWords = std::vector<std::pair<std::string, Choice>>;

// Defined in choices.cpp for every enumeration of a key.
template <class Choice>
const ChoiceWords<Choice>& choice_words();

template <class Choice>
std::string word_of_choice(Choice choice) {
  for (const auto& [word, meaning] : choice_words<Choice>()) {
    if (meaning == choice) return word;
  }
  throw InvariantError("internal: a choice has no word");
}

template <class Choice>
Choice choice_of(std::string_view word) {
  for (const auto& [known, meaning] : choice_words<Choice>()) {
    if (known == word) return meaning;
  }
  throw InvariantError("internal: " + std::string(word) + " is no word of its choice");
}

template <class Choice>
Texts choice_texts() {
  Texts words;
  for (const auto& [word, meaning] : choice_words<Choice>()) words.push_back(word);
  return words;
}

}  // namespace loom::job
