// MemLedger: the accounts of one memory, by category. Private to engine/device.
//
// Threads  the rank's host thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

#include "engine/core/rounding.h"
#include "engine/device/mem_category.h"
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
  // By place, of the categories that have been used.
  const std::array<std::string_view, kMemCategories>& names() const { return names_; }
  // Called after every change; empty: no call.
  void observe(std::function<void()> observer) { observer_ = std::move(observer); }
  void reset_peaks() {
    stats_.peak_bytes = stats_.total_bytes;
    stats_.peak_by_category = stats_.by_category;
    stats_.by_category_at_peak = stats_.by_category;
  }

 private:
  void change(MemCategory category, std::int64_t bytes) {
    names_[category.place()] = category.name();
    stats_.by_category[category] += bytes;
    stats_.total_bytes += bytes;
    stats_.peak_by_category[category] = std::max(stats_.peak_by_category[category], stats_.by_category[category]);
    if (stats_.total_bytes > stats_.peak_bytes) {
      stats_.peak_bytes = stats_.total_bytes;
      stats_.by_category_at_peak = stats_.by_category;
    }
    if (observer_) observer_();
  }

  const std::int64_t rounding_bytes_;
  std::array<std::string_view, kMemCategories> names_{};
  MemStats stats_;
  std::function<void()> observer_;
};

}  // namespace loom::device
