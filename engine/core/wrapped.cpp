#include "engine/core/wrapped.h"

#include <algorithm>

namespace loom {
namespace {

constexpr std::size_t kNearTheEnd = 30;  // bytes
constexpr std::size_t kShortGroup = 40;

// "(saves 1.50 GiB, step 6.782 s)"
bool in_short_group(std::string_view line, std::size_t at) {
  const std::size_t begin = line.find_last_of("()", at);
  const std::size_t end = line.find_first_of("()", at);
  const bool inside = begin < line.size() && end < line.size() && line[begin] == '(' && line[end] == ')';
  return inside && end - begin <= kShortGroup;
}

bool breaks(std::string_view line, std::size_t at) {
  const char before = line[at - 1];
  const bool belongs = before == ':' || (before >= '0' && before <= '9');
  return line[at] == ' ' && !belongs && !in_short_group(line, at);
}

bool ends_a_part(std::string_view line, std::size_t at) {
  return breaks(line, at) && (line[at - 1] == ',' || line[at - 1] == ';');
}

// The last break from `begin` on that leaves at most kTextColumns, or the first behind; npos: none.
std::size_t break_of(std::string_view line, std::size_t begin) {
  for (std::size_t at = kTextColumns; at > std::max(begin, kTextColumns - kNearTheEnd); --at) {
    if (ends_a_part(line, at)) return at;
  }
  for (std::size_t at = kTextColumns; at > begin; --at) {
    if (breaks(line, at)) return at;
  }
  for (std::size_t at = kTextColumns + 1; at < line.size(); ++at) {
    if (breaks(line, at)) return at;
  }
  return std::string_view::npos;
}

std::string wrapped_line(std::string line, std::size_t indent) {
  std::string text;
  while (line.size() > kTextColumns) {
    const std::size_t at = break_of(line, std::max(indent, line.find_first_not_of(' ')));
    if (at == std::string::npos) break;
    text += line.substr(0, at) + "\n";
    line = std::string(indent, ' ') + line.substr(at + 1);
  }
  return text + line;
}

}  // namespace

std::string wrapped(std::string_view text, std::size_t indent) {
  std::string lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    lines += wrapped_line(std::string(text.substr(begin, end - begin)), indent);
    if (end == std::string_view::npos) break;
    lines += '\n';
    begin = end + 1;
  }
  return lines;
}

}  // namespace loom
