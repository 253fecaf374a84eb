// Scratch memory of one thread: 64-byte aligned, only ever grows, reused by every later kernel on that thread. Private
// to engine/kernels.
//
// Threads  thread_local: each object belongs to the thread that reached its definition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace loom::kernels {

class Scratch {
 public:
  // Uninitialised room for `count` T, valid until the next call on this object.
  template <class T>
  T* get(std::int64_t count) {
    const std::size_t bytes = (static_cast<std::size_t>(count) * sizeof(T) + kAlign - 1) / kAlign * kAlign;
    if (bytes > bytes_) {
      memory_.reset();
      bytes_ = 0;
      memory_.reset(std::aligned_alloc(kAlign, bytes));
      if (!memory_) throw std::bad_alloc();
      bytes_ = bytes;
    }
    return static_cast<T*>(memory_.get());
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  static constexpr std::size_t kAlign = 64;
  std::unique_ptr<void, Free> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace loom::kernels
