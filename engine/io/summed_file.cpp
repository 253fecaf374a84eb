#include "engine/io/summed_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/io/checksum.h"
#include "engine/io/output_target.h"

namespace loom::io {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

[[noreturn]] void cannot(const std::filesystem::path& path, std::string_view verb) {
  raise<Error>("{}: cannot {}: {}", escaped(path.string()), verb, reason_of(errno));
}

}  // namespace

SummedFile::SummedFile(std::filesystem::path path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd_ < 0) cannot(path_, "create");
  buffer_.reserve(kBufferBytes);
}

SummedFile::~SummedFile() {
  if (fd_ >= 0) ::close(fd_);
}

void SummedFile::append(std::span<const std::byte> bytes) {
  sum_.size_bytes += bytes.size();
  if (bytes.size() + buffer_.size() > kBufferBytes) flush();
  if (bytes.size() >= kBufferBytes) return write(bytes);
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void SummedFile::flush() {
  write(buffer_);
  buffer_.clear();
}

void SummedFile::write(std::span<const std::byte> bytes) {
  sum_.crc32c = crc32c(bytes, sum_.crc32c);
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) cannot(path_, "write");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

FileSum SummedFile::finish() {
  flush();
  if (::fsync(fd_) != 0) cannot(path_, "write");
  if (::close(std::exchange(fd_, -1)) != 0) cannot(path_, "write");
  return sum_;
}

}  // namespace loom::io
