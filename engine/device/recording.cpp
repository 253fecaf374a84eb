#include "engine/device/recording.h"

#include <algorithm>
#include <numeric>

namespace loom::device {

MemoryPeaks peaks_of(std::span<const MemorySample> samples) {
  MemoryPeaks peaks;
  bool first = true;
  for (const MemorySample& sample : samples) {
    const std::int64_t total = std::accumulate(sample.by_category.begin(), sample.by_category.end(), std::int64_t{0});
    if (first || total > peaks.total_bytes) {
      peaks.total_bytes = total;
      peaks.by_category_at_peak = sample.by_category;
    }
    first = false;
    peaks.by_category.raise_to(sample.by_category);
    peaks.allocated_bytes = std::max(peaks.allocated_bytes, sample.allocated_bytes);
    peaks.reserved_bytes = std::max(peaks.reserved_bytes, sample.reserved_bytes);
  }
  return peaks;
}

}  // namespace loom::device
