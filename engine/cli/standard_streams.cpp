#include "engine/cli/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <fmt/core.h>
#include <iostream>
#include <system_error>

namespace loom::cli {

void secure_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // The lowest free number is taken, which is this one.
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF && ::open("/dev/null", O_RDWR) < 0) return;
  }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

void print_help(std::string_view text) {
  std::cout.flush();
  while (!text.empty()) {  // past the stream, which keeps what a closed pipe did not take
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno != EPIPE) std::cout.setstate(std::ios::badbit);
    if (written < 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

std::optional<std::string> standard_output_problem() {
  errno = 0;
  std::cout.flush();
  const bool flushed = std::fflush(stdout) == 0;
  int failed = flushed ? 0 : errno;
  if (flushed && std::cout.good() && std::ferror(stdout) == 0) return std::nullopt;
  // One more attempt gives the reason of an earlier failure.
  if (failed == 0 && ::write(STDOUT_FILENO, "\n", 1) < 0) failed = errno;
  std::cout.clear();
  std::clearerr(stdout);
  return fmt::format("standard output: cannot write{}{}; a part of what was printed is lost", failed == 0 ? "" : ": ",
                     failed == 0 ? "" : std::generic_category().message(failed));
}

}  // namespace loom::cli
