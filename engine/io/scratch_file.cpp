#include "engine/io/scratch_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/io/output_target.h"
#include "engine/io/write_all.h"

namespace loom::io {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

// Where the file system has no files without a name.
int make_and_unlink(const std::filesystem::path& folder) {
  std::string name = (folder / ".scratch.XXXXXX").string();
  const int fd = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd >= 0) ::unlink(name.c_str());
  return fd;
}

int open_nameless(const std::filesystem::path& folder) {
  constexpr mode_t kOwnerOnly = 0600;
  const int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, kOwnerOnly);
  return fd >= 0 ? fd : make_and_unlink(folder);
}

}  // namespace

ScratchFile::ScratchFile(std::filesystem::path folder)
    : folder_(folder.empty() ? "." : std::move(folder)), fd_(open_nameless(folder_)) {
  if (fd_ < 0) config_error("{}: cannot make a temporary file: {}", escaped(folder_.string()), reason_of(errno));
}

ScratchFile::~ScratchFile() { ::close(fd_); }

void ScratchFile::append(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() > kBufferBytes) return write(bytes);
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void ScratchFile::write(std::span<const std::byte> bytes) {
  const Written written = write_all(fd_, bytes);
  on_disk_ += written.bytes;
  if (written.error != 0) {
    raise<Error>("{}: cannot write a temporary file: {}", escaped(folder_.string()), reason_of(written.error));
  }
}

void ScratchFile::flush() {
  write(buffer_);
  buffer_.clear();
}

void ScratchFile::read(std::uint64_t at, std::span<std::byte> to) {
  require(at <= size() && to.size() <= size() - at, "{} bytes at {} of a temporary file of {}", to.size(), at, size());
  if (at + to.size() > on_disk_) flush();
  while (!to.empty()) {
    const ssize_t count = ::pread(fd_, to.data(), to.size(), static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      raise<Error>("{}: cannot read a temporary file: {}", escaped(folder_.string()),
                   count < 0 ? reason_of(errno) : "it was cut short");
    }
    at += static_cast<std::uint64_t>(count);
    to = to.subspan(static_cast<std::size_t>(count));
  }
}

}  // namespace loom::io
