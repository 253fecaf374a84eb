#include "engine/comm/local/segment.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <sys/mman.h>
#include <sys/stat.h>

#include "engine/core/error.h"
#include "engine/core/huge_pages.h"
#include "engine/core/rounding.h"

namespace loom::comm {
namespace {

class Mapping final : public SharedSegment {
 public:
  Mapping(void* mapped, std::size_t mapped_bytes, std::byte* data, std::size_t bytes)
      : mapped_(mapped), mapped_bytes_(mapped_bytes), data_(data), bytes_(bytes) {}
  ~Mapping() override { munmap(mapped_, mapped_bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const override { return data_; }
  std::size_t bytes() const override { return bytes_; }

 private:
  void* const mapped_;
  const std::size_t mapped_bytes_;
  std::byte* const data_;
  const std::size_t bytes_;
};

std::byte* align_up(void* address, std::size_t alignment) {
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  return reinterpret_cast<std::byte*>(round_up(value, alignment));
}

}  // namespace

std::shared_ptr<SharedSegment> make_anonymous_segment(std::size_t bytes) {
  const bool huge = bytes >= kHugePage;
  const std::size_t mapped_bytes = std::max<std::size_t>(bytes, 1) + (huge ? kHugePage : 0);
  void* mapped =
      mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    raise<CommError>("a shared segment of {} bytes cannot be mapped: {}", bytes, std::strerror(errno));
  }
  std::byte* data = huge ? align_up(mapped, kHugePage) : static_cast<std::byte*>(mapped);
  if (huge) madvise(data, bytes, MADV_HUGEPAGE);
  return std::make_shared<Mapping>(mapped, mapped_bytes, data, bytes);
}

MemoryFile::MemoryFile(std::size_t bytes) : descriptor_(memfd_create("shardloom-segment", MFD_CLOEXEC)) {
  if (descriptor_ < 0) raise<CommError>("a memory file cannot be made: {}", std::strerror(errno));
  if (ftruncate(descriptor_, static_cast<off_t>(std::max<std::size_t>(bytes, 1))) != 0) {
    const int error = errno;
    close(descriptor_);
    raise<CommError>("a memory file cannot be given {} bytes: {}", bytes, std::strerror(error));
  }
}

MemoryFile::~MemoryFile() { close(descriptor_); }

MemoryFileAddress MemoryFile::address() const {
  struct stat status {};
  fstat(descriptor_, &status);
  return {getpid(), descriptor_, static_cast<std::int64_t>(status.st_ino)};
}

std::shared_ptr<SharedSegment> map_memory_file(const MemoryFileAddress& address, std::size_t bytes) {
  const int own = open(fmt::format("/proc/{}/fd/{}", address.pid, address.descriptor).c_str(), O_RDWR | O_CLOEXEC);
  if (own < 0) return nullptr;
  struct stat status {};
  const bool same_file = fstat(own, &status) == 0 && static_cast<std::int64_t>(status.st_ino) == address.inode;
  const std::size_t mapped_bytes = std::max<std::size_t>(bytes, 1);
  void* mapped = same_file ? mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0) : MAP_FAILED;
  close(own);
  if (mapped == MAP_FAILED) return nullptr;
  return std::make_shared<Mapping>(mapped, mapped_bytes, static_cast<std::byte*>(mapped), bytes);
}

}  // namespace loom::comm
