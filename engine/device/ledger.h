// MemLedger: the accounts of one memory, by category. Private to engine/device.
//
// Threads  the rank's host thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

#include "engine/core/rounding.h"
#include "engine/device/memory.h"

namespace loom::device {

class MemLedger {
 public:
  // A block counts as the next multiple of `rounding_bytes`.
  explicit MemLedger(std::int64_t rounding_bytes) : rounding_bytes_(rounding_bytes) {}

  std::int64_t rounded(std::int64_t bytes) const { return round_up(bytes, rounding_bytes_); }

  void add(MemCategory category, std::int64_t bytes) { change(category, rounded(bytes)); }
  void remove(MemCategory category, std::int64_t bytes) { change(category, -rounded(bytes)); }

  const MemStats& stats() const { return stats_; }
  // Called after every change; empty: no call.
  void observe(std::function<void()> observer) { observer_ = std::move(observer); }
  void reset_peaks() {
    stats_.peak_bytes = stats_.total_bytes;
    stats_.peak_by_category = stats_.by_category;
    stats_.by_category_at_peak = stats_.by_category;
  }

 private:
  void change(MemCategory category, std::int64_t bytes) {
    const auto c = static_cast<std::size_t>(category);
    stats_.by_category[c] += bytes;
    stats_.total_bytes += bytes;
    stats_.peak_by_category[c] = std::max(stats_.peak_by_category[c], stats_.by_category[c]);
    if (stats_.total_bytes > stats_.peak_bytes) {
      stats_.peak_bytes = stats_.total_bytes;
      stats_.by_category_at_peak = stats_.by_category;
    }
    if (observer_) observer_();
  }

  const std::int64_t rounding_bytes_;
  MemStats stats_;
  std::function<void()> observer_;
};

}  // namespace loom::device
