// Arena: where the emulated device's bytes really live - host memory of this process.
//
// The pooled arena (arena_pool.cpp) takes huge pages, touches them at once and keeps them: a page that went back to a
// VM's host costs a hundred times a resident one. Pieces are cut by best fit; free neighbours become one, and pages of
// free pieces that are too small each are moved together for a larger request (mremap, no copy). Pieces keep their
// arena. The heap arena (arena_heap.cpp, in sanitizer builds) calls the heap each time: the sanitizer sees every piece.
//
// Threads  all members, from any thread.
#pragma once

#include <cstddef>
#include <memory>

namespace loom::device {

class Arena : public std::enable_shared_from_this<Arena> {
 public:
  static std::shared_ptr<Arena> create();
  virtual ~Arena() = default;

  // At least `bytes` of memory, 64-byte aligned (4096 for large pieces), contents undefined; returned to the arena when
  // the last owner lets go. bytes = 0 gives a non-null pointer. Throws DeviceError when the system has no memory.
  virtual std::shared_ptr<std::byte> take(std::size_t bytes) = 0;

  // Bytes taken from the system so far.
  virtual std::size_t system_bytes() const = 0;
};

}  // namespace loom::device
