// LOOM_TEXT=OFF: a build without Oniguruma. A plain pattern (a module path) matches; a regular expression is refused.
#include <cctype>
#include <fmt/format.h>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/regex/regex.h"

namespace loom::regex {
namespace {

[[noreturn]] void refuse(std::string_view pattern, const std::string& where) {
  config_error(
      "{} is '{}', a regular expression, and this program, which was built with LOOM_TEXT=OFF, reads none; build it with "
      "cmake -DLOOM_TEXT=ON",
      where, shown_text(pattern));
}

bool is_plain(std::string_view pattern) {
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const bool escaped_dot = pattern.substr(i, 2) == "\\.";
    if (escaped_dot) ++i;
    const auto c = static_cast<unsigned char>(pattern[i]);
    if (std::isalnum(c) == 0 && c != '_' && c != '-' && c != '.') return false;
  }
  return true;
}

// What is left of `text` behind a match of the plain pattern at its begin: a dot is any character, an escaped dot is a
// dot.
std::optional<std::string_view> rest_behind(std::string_view pattern, std::string_view text) {
  for (std::size_t i = 0; i < pattern.size(); ++i, text.remove_prefix(1)) {
    if (text.empty()) return std::nullopt;
    const bool escaped_dot = pattern[i] == '\\';
    if (escaped_dot) ++i;
    if (text.front() != pattern[i] && (escaped_dot || pattern[i] != '.')) return std::nullopt;
  }
  return text;
}

bool equals(std::string_view pattern, std::string_view text) {
  const auto rest = rest_behind(pattern, text);
  return rest && rest->empty();
}

}  // namespace

struct RegexScratch::Parts {};
RegexScratch::RegexScratch() = default;
RegexScratch::~RegexScratch() = default;

Regex::Regex(std::string_view pattern, std::string where) { refuse(pattern, where); }

std::optional<Range> Regex::search(std::string_view, std::size_t, RegexScratch&) const { refuse(pattern_, where_); }

FullMatch::FullMatch(std::string_view pattern, std::string where, Part part)
    : where_(std::move(where)), pattern_(pattern), part_(part) {
  if (!is_plain(pattern)) refuse(pattern, where_);
}

bool FullMatch::matches(std::string_view text, RegexScratch&) const {
  if (part_ == Part::kBeginning) return rest_behind(pattern_, text).has_value();
  if (part_ == Part::kAll || equals(pattern_, text)) return equals(pattern_, text);
  for (std::size_t dot = text.find('.'); dot != text.npos; dot = text.find('.', dot + 1)) {
    if (equals(pattern_, text.substr(dot + 1))) return true;
  }
  return false;
}

}  // namespace loom::regex
