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

// The only patterns that callers put in front of another: none, and any parents of a module path.
constexpr std::string_view kParents = "(.*\\.)?";

bool is_plain(std::string_view pattern) {
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const bool escaped_dot = pattern.substr(i, 2) == "\\.";
    if (escaped_dot) ++i;
    const auto c = static_cast<unsigned char>(pattern[i]);
    if (std::isalnum(c) == 0 && c != '_' && c != '-' && c != '.') return false;
  }
  return true;
}

// Whether all of `text` is the plain pattern: a dot is any character, an escaped dot is a dot.
bool equals(std::string_view pattern, std::string_view text) {
  for (std::size_t i = 0; i < pattern.size(); ++i, text.remove_prefix(1)) {
    if (text.empty()) return false;
    const bool escaped_dot = pattern[i] == '\\';
    if (escaped_dot) ++i;
    if (text.front() != pattern[i] && (escaped_dot || pattern[i] != '.')) return false;
  }
  return text.empty();
}

}  // namespace

struct RegexScratch::Parts {};
RegexScratch::RegexScratch() = default;
RegexScratch::~RegexScratch() = default;

Regex::Regex(std::string_view pattern, std::string where) { refuse(pattern, where); }

std::optional<Range> Regex::search(std::string_view, std::size_t, RegexScratch&) const { refuse(pattern_, where_); }

FullMatch::FullMatch(std::string_view pattern, std::string where, std::string_view before)
    : where_(std::move(where)), pattern_(fmt::format("{}{}", before, pattern)) {
  if (!is_plain(pattern) || (!before.empty() && before != kParents)) refuse(pattern, where_);
}

bool FullMatch::matches(std::string_view text, RegexScratch&) const {
  std::string_view pattern = pattern_;
  if (!pattern.starts_with(kParents)) return equals(pattern, text);
  pattern.remove_prefix(kParents.size());
  if (equals(pattern, text)) return true;
  for (std::size_t dot = text.find('.'); dot != text.npos; dot = text.find('.', dot + 1)) {
    if (equals(pattern, text.substr(dot + 1))) return true;
  }
  return false;
}

}  // namespace loom::regex
