// Whole bodies timed in turn, for ratios of two of them.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

namespace loom::bench {

inline double seconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline double median(std::vector<double> times) {
  std::ranges::sort(times);
  return times[times.size() / 2];
}

}  // namespace loom::bench
