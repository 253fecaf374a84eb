// write_all: bytes to a file descriptor, however many calls of the system that takes.
//
// Threads  safe from any number of threads on different descriptors.
#pragma once

#include <cstddef>
#include <span>

namespace loom::io {

struct Written {
  std::size_t bytes = 0;
  int error = 0;  // errno of the call that failed behind them; 0: all were written
};

Written write_all(int fd, std::span<const std::byte> bytes);

}  // namespace loom::io
