// WakeEvent: wakes a thread that sleeps in poll().
//
// Threads  any may wake; the sleeper polls get() for POLLIN, then clears.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <sys/eventfd.h>

#include "engine/core/descriptor.h"
#include "engine/core/error.h"

namespace loom {

class WakeEvent {
 public:
  // Throws Error if the system has no descriptor left.
  WakeEvent() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (event_.get() < 0) raise<Error>("no event to wake a thread: {}", std::strerror(errno));
  }
  int get() const { return event_.get(); }
  void wake() const noexcept {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t put = ::write(event_.get(), &one, sizeof one);  // full: it is awake
  }
  void clear() const {
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(event_.get(), &count, sizeof count);  // empty: nobody woke it
  }

 private:
  const Descriptor event_;
};

}  // namespace loom
