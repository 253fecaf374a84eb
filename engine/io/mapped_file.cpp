#include "engine/io/mapped_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <utility>

#include "engine/core/descriptor.h"
#include "engine/core/error.h"

namespace loom::io {
namespace {

[[noreturn]] void cannot_read(const std::filesystem::path& path, int code) {
  config_error("{}: cannot read: {}", path.string(), std::generic_category().message(code));
}

FileIdentity identity_of(const struct stat& status) {
  constexpr std::int64_t kSecond_ns = 1'000'000'000;
  return {.device = status.st_dev,
          .inode = status.st_ino,
          .size_bytes = status.st_size,
          .modified_ns = status.st_mtim.tv_sec * kSecond_ns + status.st_mtim.tv_nsec};
}

std::span<const std::byte> map(const std::filesystem::path& path, FileIdentity& identity) {
  // Without O_NONBLOCK, opening a pipe would wait for its writer.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) cannot_read(path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) cannot_read(path, errno);
  if (!S_ISREG(status.st_mode)) config_error("{}: not a regular file", path.string());
  identity = identity_of(status);
  const auto size_bytes = static_cast<std::size_t>(status.st_size);
  if (size_bytes == 0) return {};
  void* address = ::mmap(nullptr, size_bytes, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) cannot_read(path, errno);
  return {static_cast<const std::byte*>(address), size_bytes};
}

void unmap(std::span<const std::byte> bytes) {
  if (!bytes.empty()) ::munmap(const_cast<std::byte*>(bytes.data()), bytes.size());
}

constexpr const char* kLeaveIt = "leave the file as it is while a run reads it, and start again";

std::string how_it_changed(const FileIdentity& was, const FileIdentity& is) {
  if (was.device != is.device || was.inode != is.inode) return "was replaced by another file";
  if (was.size_bytes != is.size_bytes) {
    return fmt::format("had {} bytes and has {} now", was.size_bytes, is.size_bytes);
  }
  return "was written to";
}

}  // namespace

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)), bytes_(map(path_, identity_)) {}

MappedFile::~MappedFile() { unmap(bytes_); }

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), identity_(other.identity_), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap(bytes_);
    path_ = std::move(other.path_);
    identity_ = other.identity_;
    bytes_ = std::exchange(other.bytes_, {});
  }
  return *this;
}

FileReader::FileReader(const MappedFile& file) : file_(file) {
  fd_ = ::open(file.path().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) {
    raise<Error>("{}: cannot be read any more: {}; {}", file.path().string(), std::generic_category().message(errno),
                 kLeaveIt);
  }
  try {
    check();
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

FileReader::~FileReader() { ::close(fd_); }

void FileReader::check() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) {
    raise<Error>("{}: cannot be read any more: {}; {}", file_.path().string(), std::generic_category().message(errno),
                 kLeaveIt);
  }
  if (const FileIdentity now = identity_of(status); now != file_.identity()) {
    raise<Error>("{}: {} since the run opened it; {}", file_.path().string(), how_it_changed(file_.identity(), now),
                 kLeaveIt);
  }
}

void FileReader::read(std::size_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t count = ::pread(fd_, to.data(), to.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) check();  // shortened since it was opened here
    if (count <= 0) {
      raise<Error>("{}: cannot read byte {} of {}: {}; {}", file_.path().string(), offset, file_.identity().size_bytes,
                   count < 0 ? std::generic_category().message(errno) : "the file ends before", kLeaveIt);
    }
    offset += static_cast<std::size_t>(count);
    to = to.subspan(static_cast<std::size_t>(count));
  }
}

}  // namespace loom::io
