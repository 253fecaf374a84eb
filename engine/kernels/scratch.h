// Scratch memory of one thread: 64-byte aligned, only ever grows, reused by every later kernel on that thread. Private
// to engine/kernels.
//
// Pages    of kLeastHuge bytes on: huge ones, where Linux gives them: packed operands are walked row by row, which
//          misses the TLB with pages of 4 KiB.
// Threads  thread_local: each object belongs to the thread that reached its definition.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "engine/core/huge_pages.h"
#include "engine/core/rounding.h"

namespace loom::kernels {

class Scratch {
 public:
  // Uninitialised room for `count` T, valid until the next call on this object.
  template <class T>
  T* get(std::int64_t count) {
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
    if (bytes > bytes_) grow(bytes);
    return static_cast<T*>(memory_.get());
  }

 private:
  void grow(std::size_t least) {
    memory_.reset();
    bytes_ = 0;
    const bool huge = least >= kLeastHuge;
    const std::size_t bytes = round_up(least, huge ? kHugePage : kAlign);
    memory_.reset(huge ? allocate_huge_pages(bytes) : std::aligned_alloc(kAlign, bytes));
    if (!memory_) throw std::bad_alloc();
    bytes_ = bytes;
  }

  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  static constexpr std::size_t kAlign = 64, kLeastHuge = kHugePage / 4;
  std::unique_ptr<void, Free> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace loom::kernels
