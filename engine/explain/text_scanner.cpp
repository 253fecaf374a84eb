#include "engine/explain/text_scanner.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "engine/core/parse_number.h"

namespace loom::explain {
namespace {

constexpr std::array<std::pair<std::string_view, std::int64_t>, 4> kUnits{
    {{" bytes", 1}, {" KiB", 1 << 10}, {" MiB", 1 << 20}, {" GiB", 1 << 30}}};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string_view digits_of(std::string_view text) {
  return text.substr(0, static_cast<std::size_t>(std::ranges::find_if_not(text, is_digit) - text.begin()));
}

// `figure` in units of 10^-decimals.
std::optional<ByteFigure> scaled(std::int64_t figure, std::int64_t per_one, std::int64_t unit) {
  if (figure > std::numeric_limits<std::int64_t>::max() / 4 / unit) return std::nullopt;
  return ByteFigure{.bytes = (figure * unit + per_one / 2) / per_one,
                    .error_bytes = unit == 1 ? 0 : (unit + 2 * per_one - 1) / (2 * per_one)};
}

}  // namespace

bool TextScanner::take(std::string_view literal) {
  if (!rest_.starts_with(literal)) return false;
  rest_.remove_prefix(literal.size());
  return true;
}

bool TextScanner::skip_past(std::string_view literal) {
  const auto at = rest_.find(literal);
  if (at == std::string_view::npos) return false;
  rest_.remove_prefix(at + literal.size());
  return true;
}

std::optional<std::string_view> TextScanner::until(std::string_view literal, std::size_t most) {
  const auto at = rest_.substr(0, most + literal.size()).find(literal);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view before = rest_.substr(0, at);
  rest_.remove_prefix(at + literal.size());
  return before;
}

std::optional<std::int64_t> TextScanner::whole() {
  const std::string_view digits = digits_of(rest_);
  const auto value = parse_number<std::int64_t>(digits);
  if (value) rest_.remove_prefix(digits.size());
  return value;
}

std::optional<ByteFigure> TextScanner::bytes() {
  TextScanner ahead = *this;
  auto figure = ahead.whole();
  if (!figure) return std::nullopt;
  std::int64_t per_one = 1;
  if (ahead.take(".")) {
    const std::string_view digits = digits_of(ahead.rest_);
    const auto decimals = ahead.whole();
    if (!decimals || digits.size() > 3 || *figure > 1'000'000'000'000) return std::nullopt;
    for (std::size_t i = 0; i < digits.size(); ++i) per_one *= 10;
    figure = *figure * per_one + *decimals;
  }
  for (const auto& [name, unit] : kUnits) {
    if (!ahead.take(name)) continue;
    const auto value = scaled(*figure, per_one, unit);
    if (value) *this = ahead;
    return value;
  }
  return std::nullopt;
}

std::optional<std::int64_t> whole_behind(std::string_view text, std::string_view literal) {
  TextScanner scanner(text);
  return scanner.skip_past(literal) ? scanner.whole() : std::nullopt;
}

}  // namespace loom::explain
