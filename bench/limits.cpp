#include "bench/limits.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace loom::bench {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kAccumulators = 24;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
constexpr int kAccumulators = 12;
#else
constexpr int kVectorBytes = 16;
constexpr int kAccumulators = 12;
#endif

constexpr int kRuns = 5;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Seconds of the slowest of `threads` threads in body(thread), best of kRuns.
double best_seconds(int threads, const std::function<void(int)>& body) {
  double best = 1e300;
  for (int run = 0; run < kRuns; ++run) {
    std::barrier start(threads);
    std::vector<double> seconds(static_cast<std::size_t>(threads));
    auto timed = [&](int thread) {
      start.arrive_and_wait();
      const auto begin = Clock::now();
      body(thread);
      seconds[static_cast<std::size_t>(thread)] = seconds_since(begin);
    };
    std::vector<std::jthread> others;
    for (int thread = 1; thread < threads; ++thread) others.emplace_back(timed, thread);
    timed(0);
    others.clear();
    best = std::min(best, *std::max_element(seconds.begin(), seconds.end()));
  }
  return best;
}

template <class T>
struct FmaLoop {
  typedef T Vector __attribute__((vector_size(kVectorBytes)));
  static constexpr double kFlops = 2.0 * kVectorBytes / sizeof(T);
  static Vector step(Vector sum, Vector x, Vector y) { return sum * x + y; }
};

#if defined(__AVX512BF16__)
struct Bf16Loop {
  typedef float Vector __attribute__((vector_size(64)));
  static constexpr double kFlops = 64;
  static Vector step(Vector sum, Vector x, Vector y) {
    return reinterpret_cast<Vector>(
        _mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(y)));
  }
};
#else
using Bf16Loop = FmaLoop<float>;
#endif

template <class Loop>
__attribute__((noinline)) void spin(int steps, typename Loop::Vector x, typename Loop::Vector y,
                                    typename Loop::Vector* out) {
  typename Loop::Vector sum[kAccumulators] = {};
  asm volatile("" : "+m"(sum), "+m"(x), "+m"(y));  // values unknown to the compiler
  for (int i = 0; i < steps; ++i) {
#pragma GCC unroll 24
    for (int j = 0; j < kAccumulators; ++j) sum[j] = Loop::step(sum[j], x, y);
  }
  for (int j = 0; j < kAccumulators; ++j) *out += sum[j];
}

template <class Loop>
double peak(int threads) {
  constexpr int kSteps = 50'000;
  const double seconds = best_seconds(threads, [](int) {
    typename Loop::Vector out = {}, x = {}, y = {};
    x += 1;
    spin<Loop>(kSteps, x, y, &out);
    asm volatile("" : : "m"(out));
  });
  return Loop::kFlops * kAccumulators * kSteps * threads / seconds;
}

struct Slice {
  std::size_t begin;
  std::size_t end;
};
Slice slice(std::size_t elems, int thread, int threads) {
  const auto i = static_cast<std::size_t>(thread), n = static_cast<std::size_t>(threads);
  return {elems * i / n, elems * (i + 1) / n};
}

}  // namespace

double fma_peak_flops(DType dtype, int threads) {
  if (dtype == DType::kF64) return peak<FmaLoop<double>>(threads);
  if (dtype == DType::kBF16) return std::max(peak<Bf16Loop>(threads), peak<FmaLoop<float>>(threads));
  return peak<FmaLoop<float>>(threads);
}

double triad_bytes_per_second(int threads, std::size_t bytes_per_array) {
  const std::size_t elems = bytes_per_array / sizeof(float);
  std::vector<float> a(elems, 0.0f), b(elems, 1.0f), c(elems, 2.0f);
  const double seconds = best_seconds(threads, [&](int thread) {
    const Slice s = slice(elems, thread, threads);
    float* __restrict out = a.data();
    const float* __restrict left = b.data();
    const float* __restrict right = c.data();
    for (std::size_t i = s.begin; i < s.end; ++i) out[i] = left[i] + 3.0f * right[i];
    asm volatile("" : : "r"(out) : "memory");
  });
  return 3.0 * static_cast<double>(elems * sizeof(float)) / seconds;
}

double memcpy_bytes_per_second(int threads, std::size_t bytes) {
  std::vector<std::byte> from(bytes, std::byte{1}), to(bytes);
  const double seconds = best_seconds(threads, [&](int thread) {
    const Slice s = slice(bytes, thread, threads);
    std::memcpy(to.data() + s.begin, from.data() + s.begin, s.end - s.begin);
    asm volatile("" : : "r"(to.data()) : "memory");
  });
  return 2.0 * static_cast<double>(bytes) / seconds;
}

}  // namespace loom::bench
