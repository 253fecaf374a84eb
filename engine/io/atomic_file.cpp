#include "engine/io/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "engine/core/error.h"

namespace loom::io {
namespace {

// One thread writes one file at a time, so process and thread make the name unique.
std::filesystem::path temporary_name(const std::filesystem::path& path) {
  return fmt::format("{}.{}.{}.tmp", path.string(), ::getpid(), ::gettid());
}

[[noreturn]] void cannot_write(const std::filesystem::path& path, int code) {
  raise<Error>("{}: cannot write: {}", path.string(), std::generic_category().message(code));
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)), temporary_(temporary_name(path_)) {
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) config_error("{}: cannot create: {}", path_.string(), std::generic_category().message(errno));
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  require(fd_ >= 0, "write to '{}' after commit", path_.string());
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) cannot_write(path_, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void AtomicFile::commit() {
  require(fd_ >= 0, "second commit of '{}'", path_.string());
  if (::fsync(fd_) != 0) cannot_write(path_, errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) cannot_write(path_, errno);
  ::close(std::exchange(fd_, -1));
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace loom::io
