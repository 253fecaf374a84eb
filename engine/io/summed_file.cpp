#include "engine/io/summed_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

#include "engine/core/error.h"
#include "engine/core/shown_text.h"
#include "engine/io/checksum.h"
#include "engine/io/output_target.h"
#include "engine/io/write_all.h"

namespace loom::io {
namespace {

constexpr std::size_t kSummedBytes = std::size_t{1} << 20;

[[noreturn]] void cannot(const std::filesystem::path& path, std::string_view verb, int error) {
  raise<Error>("{}: cannot {}: {}", escaped(path.string()), verb, reason_of(error));
}

}  // namespace

SummedFile::SummedFile(std::filesystem::path path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd_ < 0) cannot(path_, "create", errno);
  buffer_.reserve(kSummedBytes);
}

SummedFile::~SummedFile() {
  if (fd_ >= 0) ::close(fd_);
}

void SummedFile::append(std::span<const std::byte> bytes) {
  sum_.size_bytes += bytes.size();
  if (bytes.size() + buffer_.size() > kSummedBytes) flush();
  if (bytes.size() >= kSummedBytes) return write(bytes);
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void SummedFile::flush() {
  write(buffer_);
  buffer_.clear();
}

void SummedFile::write(std::span<const std::byte> bytes) {
  sum_.crc32c = crc32c(bytes, sum_.crc32c);
  if (const int error = write_all(fd_, bytes).error; error != 0) cannot(path_, "write", error);
}

FileSum SummedFile::finish() {
  flush();
  if (::fsync(fd_) != 0) cannot(path_, "write", errno);
  if (::close(std::exchange(fd_, -1)) != 0) cannot(path_, "write", errno);
  return sum_;
}

}  // namespace loom::io
