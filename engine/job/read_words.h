// Reads numbers and words behind a flag, and refuses them in the form "--lr is -1; use a number above 0".
//
// Errors    ConfigError with flag, value and the allowed values.
// Threads   safe from any number of threads.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/parse_number.h"
#include "engine/core/shown_text.h"

namespace loom::job {

template <class Integer>
Integer read_whole(std::string_view flag, const std::string& text, std::int64_t least) {
  const auto number = parse_number<Integer>(text);
  if (!number || std::cmp_less(*number, least)) {
    config_error("{} is {}; use a whole number of at least {}", flag, shown_text(text), least);
  }
  return *number;
}

// `allowed` describes the test of `holds`.
inline double read_real(std::string_view flag, const std::string& text, bool (*holds)(double),
                        std::string_view allowed) {
  const auto number = parse_number<double>(text);
  if (!number || !std::isfinite(*number) || !holds(*number)) {
    config_error("{} is {}; use {}", flag, shown_text(text), allowed);
  }
  return *number;
}

template <class Integer>
std::vector<Integer> read_numbers(std::string_view flag, const std::vector<std::string>& words, Integer least) {
  std::vector<Integer> numbers;
  for (const std::string& word : words) {
    const auto number = parse_number<Integer>(word);
    if (!number || *number < least) {
      config_error("{} is {}; use whole numbers of at least {}", flag, shown_text(word), least);
    }
    numbers.push_back(*number);
  }
  return numbers;
}

// Refuses an empty text.
const std::string& read_text(std::string_view flag, const std::string& text);
// Refuses a word that is not one of `choices`; the message names the nearest.
const std::string& read_choice(std::string_view flag, const std::string& text, const std::vector<std::string>& choices);

}  // namespace loom::job
