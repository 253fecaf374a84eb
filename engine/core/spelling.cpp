#include "engine/core/spelling.h"

#include <algorithm>
#include <fmt/format.h>
#include <numeric>
#include <vector>

namespace loom {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

// To a shell.
bool is_plain(char c) {
  const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  return letter || std::string_view("_@%+=:,./-").find(c) != std::string_view::npos;
}

bool is_control(char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; }

}  // namespace

std::optional<std::string> nearest_spelling(std::string_view word, std::span<const std::string> candidates) {
  std::optional<std::string> best;
  std::size_t limit = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < limit) {
      limit = distance;
      best = candidate;
    }
  }
  return best;
}

std::string lower_case(std::string_view text) {
  std::string lowered(text);
  for (char& c : lowered) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lowered;
}

std::string shell_word(std::string_view word) {
  if (!word.empty() && std::ranges::all_of(word, is_plain)) return std::string(word);
  const bool has_control = std::ranges::any_of(word, is_control);
  std::string text = has_control ? "$'" : "'";
  for (const char c : word) {
    if (has_control && (is_control(c) || c == '\\' || c == '\'')) {
      text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      text += c == '\'' ? "'\\''" : std::string(1, c);
    }
  }
  return text + "'";
}

}  // namespace loom
