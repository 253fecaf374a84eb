#include "engine/io/mapped_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <utility>

#include "engine/core/error.h"

namespace loom::io {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

[[noreturn]] void cannot_read(const std::filesystem::path& path, int code) {
  config_error("{}: cannot read: {}", path.string(), std::generic_category().message(code));
}

std::span<const std::byte> map(const std::filesystem::path& path) {
  // Without O_NONBLOCK, opening a pipe would wait for its writer.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) cannot_read(path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) cannot_read(path, errno);
  if (!S_ISREG(status.st_mode)) config_error("{}: not a regular file", path.string());
  const auto size_bytes = static_cast<std::size_t>(status.st_size);
  if (size_bytes == 0) return {};
  void* address = ::mmap(nullptr, size_bytes, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) cannot_read(path, errno);
  return {static_cast<const std::byte*>(address), size_bytes};
}

void unmap(std::span<const std::byte> bytes) {
  if (!bytes.empty()) ::munmap(const_cast<std::byte*>(bytes.data()), bytes.size());
}

}  // namespace

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)), bytes_(map(path_)) {}

MappedFile::~MappedFile() { unmap(bytes_); }

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap(bytes_);
    path_ = std::move(other.path_);
    bytes_ = std::exchange(other.bytes_, {});
  }
  return *this;
}

}  // namespace loom::io
