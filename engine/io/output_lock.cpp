#include "engine/io/output_lock.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>
#include <sys/file.h>
#include <sys/stat.h>
#include <thread>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/host_name.h"
#include "engine/core/local_time.h"
#include "engine/core/log.h"
#include "engine/io/output_target.h"

namespace loom::io {
namespace {

namespace fs = std::filesystem;

// "process 4711 on node3 since 2026-01-31 12:00:00".
std::string who_am_i() {
  return fmt::format("process {} on {} since {}", ::getpid(), host_name(), local_time_text(std::time(nullptr)));
}

// The printable characters of a lock file.
std::string read_who(int fd) {
  std::array<char, 300> text{};
  const ssize_t length = ::pread(fd, text.data(), text.size(), 0);
  std::string who;
  for (ssize_t i = 0; i < length; ++i) {
    if (const char c = text[static_cast<std::size_t>(i)]; c >= ' ' && c <= '~') who.push_back(c);
  }
  return who.empty() ? "its lock file is empty" : who;
}

bool is_still_at(int fd, const fs::path& path) {
  struct stat held {};
  struct stat there {};
  return ::fstat(fd, &held) == 0 && ::lstat(path.c_str(), &there) == 0 && held.st_dev == there.st_dev &&
         held.st_ino == there.st_ino;
}

// True once it is locked; false at `until`, or where the file system has no locks (errno says which).
bool lock_until(int fd, std::chrono::steady_clock::time_point until) {
  constexpr std::chrono::milliseconds kPause{20};
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK || std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

}  // namespace

OutputLock OutputLock::of_folder(const std::string& flag, const fs::path& folder) {
  return {flag, folder, folder / ".shardloom.lock"};
}

OutputLock OutputLock::of_file(const std::string& flag, const fs::path& file) {
  return of_file_in_turn(flag, file, std::chrono::milliseconds(0));
}

OutputLock OutputLock::of_file_in_turn(const std::string& flag, const fs::path& file,
                                       std::chrono::milliseconds longest_wait) {
  const fs::path target = resolve_output(file).path;
  return {flag, file, target.parent_path() / fmt::format(".{}.lock", target.filename().string()), longest_wait};
}

OutputLock::OutputLock(const std::string& flag, const fs::path& output, fs::path lock,
                       std::chrono::milliseconds longest_wait)
    : path_(std::move(lock)) {
  const auto until = std::chrono::steady_clock::now() + longest_wait;
  while (!take(flag, output, until)) {
  }
}

OutputLock::~OutputLock() {
  if (fd_ < 0) return;
  ::unlink(path_.c_str());
  ::close(fd_);
}

OutputLock::OutputLock(OutputLock&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

bool OutputLock::take(const std::string& flag, const fs::path& output, std::chrono::steady_clock::time_point until) {
  const int fd = ::open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd < 0) config_error("{}: {}: cannot create: {}", flag, path_.string(), reason_of(errno));
  if (!lock_until(fd, until)) {
    const int failed = errno;
    const std::string who = read_who(fd);
    ::close(fd);
    if (failed == EWOULDBLOCK) {
      config_error("{}: another run writes {} ({}); wait for its end, or give another path", flag, output.string(),
                   who);
    }
    log_warning("{}: {} cannot be locked: {}; take care that no other run writes there", flag, output.string(),
                reason_of(failed));
    return true;
  }
  if (!is_still_at(fd, path_)) {
    ::close(fd);
    return false;
  }
  fd_ = fd;
  say_who();
  return true;
}

// The holder's name only helps people: a full disk is no reason to stop here.
void OutputLock::say_who() const {
  const std::string who = who_am_i() + "\n";
  if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, who.data(), who.size(), 0) < 0) {
    log_warning("{}: cannot write: {}", path_.string(), reason_of(errno));
  }
}

}  // namespace loom::io
