// Pages of 2 MiB: a processor caches few page addresses, and a large array has too many pages of 4 KiB.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>
#include <sys/mman.h>

#include "engine/core/rounding.h"

namespace loom {

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Uninitialised room for `bytes`, rounded up to huge pages, which Linux gives where it has them. std::free() gives it
// back. std::bad_alloc if there is none.
inline void* allocate_huge_pages(std::size_t bytes) {
  const std::size_t whole = round_up(bytes, kHugePage);
  void* const memory = std::aligned_alloc(kHugePage, whole);
  if (memory == nullptr) throw std::bad_alloc();
  madvise(memory, whole, MADV_HUGEPAGE);
  return memory;
}

}  // namespace loom
