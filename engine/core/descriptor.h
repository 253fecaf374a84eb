// Descriptor: a file descriptor that is closed at the end of its scope.
#pragma once

#include <unistd.h>

namespace loom {

class Descriptor {
 public:
  // -1: nothing was opened.
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

}  // namespace loom
