// A search in sizes that fit up to some. Private to engine/plan.
#pragma once

#include <algorithm>
#include <cstddef>

namespace loom::plan {

// The first of `count` indexes for which `holds` is false, or their number; it is taken to stay false from there on.
// 0, 1, 3, 7, ... are tried, and the last; then the middle of what is left. Those that hold are tried in ascending
// order. With a `precision`, an index is given below which all hold, at most that share of it too low.
template <class Holds>
std::size_t first_failing(std::size_t count, Holds&& holds, double precision = 0) {
  std::size_t holding = 0;  // every index below it
  std::size_t failing = count;
  for (std::size_t size = 1; holding < failing; size *= 2) {
    const std::size_t i = std::min(size, count) - 1;
    if (!holds(i)) {
      failing = i;
      break;
    }
    holding = i + 1;
  }
  while (static_cast<double>(failing - holding) > precision * static_cast<double>(holding)) {
    const std::size_t middle = holding + (failing - holding) / 2;
    if (holds(middle)) {
      holding = middle + 1;
    } else {
      failing = middle;
    }
  }
  return holding;
}

}  // namespace loom::plan
