// How an all-reduce cuts its elements: one chunk a member, whole cache lines where there are enough, trailing ones may
// be empty. Private to engine/comm.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/core/rounding.h"

namespace loom::comm {

struct Slice {
  std::int64_t begin = 0;
  std::int64_t elems = 0;
};

inline Slice slice_of(std::int64_t elems, int size, int member) {
  constexpr std::int64_t kLine = 64;  // elements
  const std::int64_t even = ceil_div<std::int64_t>(elems, size);
  const std::int64_t step = round_up(even, kLine);
  const std::int64_t begin = std::min(elems, step * member);
  return {begin, std::min(elems, begin + step) - begin};
}

}  // namespace loom::comm
