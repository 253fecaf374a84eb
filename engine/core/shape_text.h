// A Shape as an argument of a format, "[2, 3]": the text is made only where it is needed.
#pragma once

#include <algorithm>
#include <fmt/core.h>
#include <string>

#include "engine/core/shape.h"

template <>
struct fmt::formatter<loom::Shape> {
  constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
  auto format(const loom::Shape& shape, fmt::format_context& context) const {
    const std::string text = loom::to_string(shape);
    return std::copy(text.begin(), text.end(), context.out());
  }
};
