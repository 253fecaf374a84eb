#include "engine/launcher/lines.h"

#include <algorithm>

namespace loom::launcher {

void Lines::add(std::string_view bytes, const Take& take) {
  while (!bytes.empty()) {
    const std::size_t room = kLongestLine - begun_.size();
    const std::size_t end = bytes.substr(0, room).find('\n');
    const std::size_t taken = end == std::string_view::npos ? std::min(room, bytes.size()) : end + 1;
    begun_.append(bytes.substr(0, taken));
    bytes.remove_prefix(taken);
    if (begun_.back() != '\n' && begun_.size() < kLongestLine) return;
    if (begun_.back() != '\n') begun_ += '\n';
    take(begun_);
    begun_.clear();
  }
}

void Lines::finish(const Take& take) {
  if (begun_.empty()) return;
  take(begun_ += '\n');
  begun_.clear();
}

void LastLines::add(std::string_view bytes) {
  kept_.append(bytes);
  if (kept_.size() <= bytes_) return;
  kept_.erase(0, kept_.size() - bytes_);
  cut_ = true;
}

std::string LastLines::text() const {
  const std::size_t end = cut_ ? kept_.find('\n') : std::string::npos;
  return end == std::string::npos || end + 1 == kept_.size() ? kept_ : kept_.substr(end + 1);
}

}  // namespace loom::launcher
