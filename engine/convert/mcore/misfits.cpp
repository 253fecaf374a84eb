#include "engine/convert/mcore/misfits.h"

#include "engine/core/error.h"
#include "engine/core/shown_text.h"

namespace loom::checkpoint {
namespace {

constexpr std::size_t kMostListed = 6;
constexpr std::size_t kMost = 1000;

}  // namespace

void Misfits::add_line(const std::string& line) {
  lines_.insert(escaped(line));
  if (lines_.size() == kMost) refuse();
}

void Misfits::refuse() const {
  if (lines_.empty()) return;
  std::string text = fmt::format("{}: {}{} do not fit", head_, lines_.size(), lines_.size() == kMost ? " or more" : "");
  std::size_t listed = 0;
  for (const std::string& line : lines_) {
    if (++listed > kMostListed) break;
    text += "\n  " + line;
  }
  if (lines_.size() > kMostListed) text += fmt::format("\n  and {} more", lines_.size() - kMostListed);
  throw ConfigError(text);
}

}  // namespace loom::checkpoint
