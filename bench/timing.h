// What arithmetic benchmarks share: operands, a rank with compute threads, and time as a share of the peak.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "bench/limits.h"
#include "engine/core/huge_pages.h"
#include "engine/core/parallel.h"
#include "engine/core/rank_context.h"
#include "engine/core/rng.h"

namespace loom::bench {

// Memory as the engine's arena hands it out: huge pages.
template <class T>
struct HugePages {
  using value_type = T;
  HugePages() = default;
  template <class U>
  HugePages(const HugePages<U>&) {}
  bool operator==(const HugePages&) const = default;

  T* allocate(std::size_t count) { return static_cast<T*>(allocate_huge_pages(count * sizeof(T))); }
  void deallocate(T* memory, std::size_t) { std::free(memory); }
};

using Bytes = std::vector<unsigned char, HugePages<unsigned char>>;

inline double at(const Bytes& array, DType dtype, std::int64_t i) {
  const unsigned char* from = array.data() + i * element_bytes(dtype);
  if (dtype == DType::kBF16) {
    bf16 value;
    std::memcpy(&value, from, sizeof(value));
    return static_cast<float>(value);
  }
  float value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// Uniform in [-1, 1); fp32 or bf16.
inline Bytes random_array(DType dtype, std::int64_t count, std::uint64_t key) {
  Bytes array(count * element_bytes(dtype));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(2 * uniform_at(key, static_cast<std::uint64_t>(i)) - 1);
    unsigned char* to = array.data() + i * element_bytes(dtype);
    const bf16 rounded(value);
    dtype == DType::kBF16 ? std::memcpy(to, &rounded, sizeof(rounded)) : std::memcpy(to, &value, sizeof(value));
  }
  return array;
}

// One thread, and as many as there are cores.
inline std::vector<int> thread_counts() {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return cores > 1 ? std::vector<int>{1, cores} : std::vector<int>{1};
}

class ThreadsScope {
 public:
  explicit ThreadsScope(int threads) : context_(0, 1), scope_(context_) {
    context_.slot<ComputePool>().resize(threads);
  }

 private:
  RankContext context_;
  RankScope scope_;
};

// Seconds since an arbitrary point: of this thread's processor time when it works alone, so that neighbours on the same
// cores do not count; of the wall clock when it works with others.
inline double work_seconds(int threads) {
  timespec now{};
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Repetitions of one kernel against the peak before, between and after them: clocks and neighbours drift, so each
// repetition is divided by the mean of the peaks beside it, and the median counts.
class PeakShare {
 public:
  PeakShare(DType dtype, int threads) : dtype_(dtype), threads_(threads), peak_(measure_peak()) {}

  template <class Kernel>
  void time(Kernel&& kernel) {
    const double begin = work_seconds(threads_);
    kernel();
    const double seconds = work_seconds(threads_) - begin;
    const double before = peak_;
    since_peak_ += seconds;
    if (since_peak_ > kPeakInterval) {
      peak_ = measure_peak();
      since_peak_ = 0;
    }
    seconds_.push_back(seconds);
    seconds_at_peak_.push_back(seconds * (before + peak_) / 2);
  }

  double percent(double flops) const { return 100 * flops / median(seconds_at_peak_); }
  double flops_per_second(double flops) const { return flops / median(seconds_); }

 private:
  static constexpr double kPeakInterval = 0.05;

  double measure_peak() const { return fma_peak_flops(dtype_, threads_); }
  static double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
  }

  DType dtype_;
  int threads_;
  double peak_;
  double since_peak_ = 0;
  std::vector<double> seconds_, seconds_at_peak_;
};

}  // namespace loom::bench
