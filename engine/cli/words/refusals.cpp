#include "engine/cli/words/refusals.h"

#include <algorithm>
#include <fmt/ranges.h>
#include <span>

namespace loom::cli {
namespace {

constexpr std::string_view kOfFlags = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";

// "--lr" and "--min-lr" of "--lr is 2, above --min-lr 1".
std::vector<std::string_view> flags_in(std::string_view text) {
  std::vector<std::string_view> flags;
  for (std::size_t at = text.find("--"); at != std::string_view::npos; at = text.find("--", at)) {
    const std::size_t end = std::min(text.find_first_not_of(kOfFlags, at), text.size());
    flags.push_back(text.substr(at, end - at));
    at = end;
  }
  return flags;
}

}  // namespace

void Refusals::add(std::string line) {
  const auto names = [flags = flags_in(line)](const std::string& parsed) {
    return std::ranges::any_of(flags_in(parsed),
                               [&](auto flag) { return std::ranges::find(flags, flag) != flags.end(); });
  };
  if (std::ranges::any_of(std::span(lines_).first(parsed_), names)) return;
  // A second line about the same flag follows from the first.
  const auto first_word = [](std::string_view text) { return text.substr(0, text.find(' ')); };
  const bool is_known = std::ranges::any_of(lines_, [&](const std::string& known) {
    return line.starts_with("--") && first_word(known) == first_word(line);
  });
  if (!is_known) lines_.push_back(std::move(line));
}

void Refusals::raise() const {
  if (lines_.size() == 1) config_error("{}", lines_.front());
  if (lines_.empty()) return;
  const std::string all = fmt::format("{}", fmt::join(lines_, "\n  "));
  if (lines_.size() == parsed_) config_error("{} flags are not taken:\n  {}", lines_.size(), all);
  config_error("the command line has {} mistakes:\n  {}", lines_.size(), all);
}

}  // namespace loom::cli
