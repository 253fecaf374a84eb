#include <charconv>
#include <cmath>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/regex/regex.h"
#include "engine/train/parameter_rules.h"

namespace loom::train {

LrScale parse_lr_scale(std::string_view text) {
  const std::size_t equals = text.rfind('=');
  const std::string_view number = equals == std::string_view::npos ? "" : text.substr(equals + 1);
  LrScale scale;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), scale.factor);
  if (equals == std::string_view::npos || equals == 0 || error != std::errc{} || end != number.data() + number.size() ||
      !std::isfinite(scale.factor) || scale.factor < 0) {
    config_error(
        "--lr-scaling-plan has {}; write REGEX=FACTOR with a factor of at least 0, as in 'model\\.embed_tokens=0.1'",
        shown_text(text));
  }
  scale.pattern = text.substr(0, equals);
  regex::FullMatch(scale.pattern, "--lr-scaling-plan");  // an error shows the pattern as it was written
  return scale;
}

}  // namespace loom::train
