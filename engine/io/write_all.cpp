#include "engine/io/write_all.h"

#include <unistd.h>

#include <cerrno>

namespace loom::io {

Written write_all(int fd, std::span<const std::byte> bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return {done, errno};
    done += static_cast<std::size_t>(count);
  }
  return {done, 0};
}

}  // namespace loom::io
