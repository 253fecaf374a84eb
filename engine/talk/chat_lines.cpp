#include "engine/talk/chat_lines.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "engine/core/error.h"

namespace loom::talk {
namespace {

constexpr int kPatience_ms = 100;
constexpr std::size_t kPiece = 65536;

void without_carriage_return(std::string& line) {
  if (line.ends_with('\r')) line.pop_back();
}

}  // namespace

bool ChatLines::take(std::string& line, Got& got) {
  const std::size_t end = read_.find('\n');
  if (end == std::string::npos) {
    too_long_ = too_long_ || read_.size() > most_bytes_;
    if (too_long_) read_.clear();
    return false;
  }
  got = std::exchange(too_long_, false) || end > most_bytes_ ? Got::kTooLong : Got::kLine;
  line = got == Got::kLine ? read_.substr(0, end) : std::string();
  without_carriage_return(line);
  read_.erase(0, end + 1);
  return true;
}

bool ChatLines::read_more() {
  std::array<char, kPiece> bytes{};
  const ssize_t count = ::read(descriptor_, bytes.data(), bytes.size());
  if (count < 0 && errno != EINTR && errno != EAGAIN) {
    raise<Error>("standard input: cannot read: {}", std::generic_category().message(errno));
  }
  if (count > 0) read_.append(bytes.data(), static_cast<std::size_t>(count));
  return count != 0;
}

ChatLines::Got ChatLines::next(std::string& line, const std::function<bool()>& interrupted) {
  Got got = Got::kEnd;
  while (!take(line, got)) {
    pollfd waits{descriptor_, POLLIN, 0};
    while (::poll(&waits, 1, kPatience_ms) <= 0) {
      if (interrupted()) return Got::kInterrupted;
    }
    if (read_more()) continue;
    const bool is_line = too_long_ || !read_.empty();
    line = std::exchange(read_, {});
    without_carriage_return(line);
    if (std::exchange(too_long_, false)) return Got::kTooLong;
    return is_line ? Got::kLine : Got::kEnd;
  }
  return got;
}

}  // namespace loom::talk
