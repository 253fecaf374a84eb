// parse_number: a whole text as a number, in C's notation and without spaces, or none.
//
// Threads   safe from any number of threads.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace loom {

template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc{} || end != last) return std::nullopt;
  return value;
}

}  // namespace loom
