// The fused kernels against memory: bytes they must move (by formula) a second, as a ratio to STREAM triad measured
// just before in the same process.
//
// Arrays   384 MiB each, in every dtype: beyond the L3 cache of one host. Aligned to 64. Rows of 2048; vocabulary of
//          151936; heads of 128.
// Checked  the end of each result against the same kernel in fp64, before it is timed. Counters of_triad (the ratio;
//          the best run of each), GB_s, triad_GB_s.
#include <algorithm>
#include <benchmark/benchmark.h>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "bench/limits.h"
#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/core/rank_context.h"
#include "engine/core/rng.h"
#include "engine/kernels/fused.h"
#include "engine/kernels/reduce.h"

namespace loom::bench {
namespace {

using Doubles = std::vector<double>;

constexpr std::int64_t kArrayBytes = std::int64_t{384} << 20;
constexpr std::int64_t kDim = 2048;
constexpr std::int64_t kVocab = 151936;
constexpr std::int64_t kHeads = 16, kHeadDim = 128, kBatch = 8;
constexpr double kEps = 1e-6;

// The arrays all cases share, filled anew for each case: large ones of kArrayBytes, small ones for weights and
// statistics.
class Arrays {
 public:
  Arrays() {
    for (auto& array : large_) array.resize(kArrayBytes / sizeof(Line));
    for (auto& array : small_) array.resize(kSmallBytes / sizeof(Line));
  }
  void* operator[](int i) { return large_[i].data(); }
  void* small(int i) { return small_[i].data(); }

  void fill(DType dtype) {
    for (int i = 0; i < kLarge; ++i) fill(dtype, large_[i], i);
    for (int i = 0; i < kSmall; ++i) fill(dtype, small_[i], kLarge + i);
  }

 private:
  // A cache line: tensors start at one.
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  static constexpr int kLarge = 5, kSmall = 4;
  static constexpr std::int64_t kSmallBytes = std::int64_t{16} << 20;

  // Normal numbers with a prime period, shifted from array to array.
  static void fill(DType dtype, std::vector<Line>& array, int shift) {
    constexpr std::int64_t kPeriod = 65521;
    std::vector<float> numbers(kPeriod);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = static_cast<float>(normal_at(7, i + static_cast<std::size_t>(shift) * 101));
    }
    const auto size = element_bytes(dtype);
    const auto elems = static_cast<std::int64_t>(array.size() * sizeof(Line)) / size;
    auto* bytes = reinterpret_cast<std::byte*>(array.data());
    for (std::int64_t at = 0; at < elems; at += kPeriod) {
      kernels::cast(std::min(kPeriod, elems - at), DType::kF32, numbers.data(), dtype, bytes + at * size);
    }
  }

  std::vector<Line> large_[kLarge];
  std::vector<Line> small_[kSmall];
};

// One kernel on full arrays, and the last elements of its result computed in fp64 before it ran.
struct Run {
  double bytes;
  std::function<void()> kernel;
  DType out_dtype;
  const void* out;
  std::int64_t out_elems;
  Doubles expected;
};

// The last `count` of `elems` elements, in fp64.
Doubles tail(DType dtype, const void* array, std::int64_t elems, std::int64_t count) {
  Doubles values(static_cast<std::size_t>(count));
  const auto size = element_bytes(dtype);
  kernels::cast(count, dtype, static_cast<const std::byte*>(array) + (elems - count) * size, DType::kF64,
                values.data());
  return values;
}
Doubles head(DType dtype, const void* array, std::int64_t count) { return tail(dtype, array, count, count); }

std::int64_t elems_of(DType dtype) { return kArrayBytes / element_bytes(dtype); }

constexpr DType kF64 = DType::kF64;
constexpr std::int64_t kTail = 1000;  // elements checked of element-wise kernels

Run rms_forward(DType d, Arrays& a) {
  const std::int64_t elems = elems_of(d);
  const Doubles x = tail(d, a[0], elems, kDim), w = head(d, a.small(0), kDim);
  Doubles y(kDim), rstd(1);
  kernels::rms_norm_forward({kF64, 1, kDim, kEps}, x.data(), w.data(), y.data(), rstd.data());
  auto kernel = [=, &a] {
    kernels::rms_norm_forward({d, elems / kDim, kDim, kEps}, a[0], a.small(0), a[1], a.small(1));
  };
  return {2.0 * kArrayBytes, kernel, d, a[1], elems, y};
}

Run rms_backward(DType d, Arrays& a) {
  const std::int64_t elems = elems_of(d);
  kernels::rms_norm_forward({d, elems / kDim, kDim, kEps}, a[0], a.small(0), a[2], a.small(1));
  const Doubles x = tail(d, a[0], elems, kDim), dy = tail(d, a[1], elems, kDim), w = head(d, a.small(0), kDim);
  const Doubles rstd = tail(DType::kF32, a.small(1), elems / kDim, 1);
  Doubles dx(kDim), dw(kDim);
  kernels::rms_norm_backward({kF64, 1, kDim}, x.data(), w.data(), rstd.data(), dy.data(), dx.data(), dw.data());
  auto kernel = [=, &a] {
    kernels::rms_norm_backward({d, elems / kDim, kDim}, a[0], a.small(0), a.small(1), a[1], a[2], a.small(2));
  };
  return {3.0 * kArrayBytes, kernel, d, a[2], elems, dx};
}

Run layer_forward(DType d, Arrays& a) {
  const std::int64_t elems = elems_of(d);
  const Doubles x = tail(d, a[0], elems, kDim), w = head(d, a.small(0), kDim);
  Doubles y(kDim), mean(1), rstd(1);
  kernels::layer_norm_forward({kF64, 1, kDim, kEps}, x.data(), w.data(), w.data(), y.data(), mean.data(), rstd.data());
  auto kernel = [=, &a] {
    kernels::layer_norm_forward({d, elems / kDim, kDim, kEps}, a[0], a.small(0), a.small(0), a[1], a.small(1),
                                a.small(2));
  };
  return {2.0 * kArrayBytes, kernel, d, a[1], elems, y};
}

Run swiglu_forward(DType d, Arrays& a) {
  const std::int64_t elems = elems_of(d);
  const Doubles gate = tail(d, a[0], elems, kTail), up = tail(d, a[1], elems, kTail);
  Doubles y(kTail);
  kernels::swiglu_forward(kF64, kTail, gate.data(), up.data(), y.data());
  return {3.0 * kArrayBytes, [=, &a] { kernels::swiglu_forward(d, elems, a[0], a[1], a[2]); }, d, a[2], elems, y};
}

Run swiglu_backward(DType d, Arrays& a) {
  const std::int64_t elems = elems_of(d);
  const Doubles gate = tail(d, a[0], elems, kTail), up = tail(d, a[1], elems, kTail), dy = tail(d, a[2], elems, kTail);
  Doubles dgate(kTail), dup(kTail);
  kernels::swiglu_backward(kF64, kTail, gate.data(), up.data(), dy.data(), dgate.data(), dup.data());
  auto kernel = [=, &a] { kernels::swiglu_backward(d, elems, a[0], a[1], a[2], a[3], a[4]); };
  return {5.0 * kArrayBytes, kernel, d, a[3], elems, dgate};
}

Run gelu_forward(DType d, Arrays& a) {
  const std::int64_t elems = elems_of(d);
  const Doubles x = tail(d, a[0], elems, kTail);
  Doubles y(kTail);
  kernels::gelu_forward(kF64, kernels::GeluForm::kTanh, kTail, x.data(), y.data());
  auto kernel = [=, &a] { kernels::gelu_forward(d, kernels::GeluForm::kTanh, elems, a[0], a[1]); };
  return {2.0 * kArrayBytes, kernel, d, a[1], elems, y};
}

Run rope(DType d, Arrays& a) {
  const std::int64_t elems = elems_of(d);
  const std::int64_t seq = elems / (kBatch * kHeads * kHeadDim);
  const Doubles x = tail(d, a[0], elems, kHeadDim);
  const Doubles cos = tail(d, a.small(0), seq * kHeadDim, kHeadDim),
                sin = tail(d, a.small(1), seq * kHeadDim, kHeadDim);
  Doubles y(kHeadDim);
  kernels::rope({kF64, kF64, false, 1, 1, 1, kHeadDim}, x.data(), cos.data(), sin.data(), y.data());
  auto kernel = [=, &a] {
    kernels::rope({d, d, false, kBatch, seq, kHeads, kHeadDim}, a[0], a.small(0), a.small(1), a[1]);
  };
  return {2.0 * kArrayBytes, kernel, d, a[1], elems, y};
}

// Weight, m and v in fp32, the gradient in `d`: 24 bytes a parameter and the gradient's.
Run adamw(DType d, Arrays& a) {
  const std::int64_t elems = elems_of(DType::kF32);
  kernels::cast(elems, DType::kF32, a[0], d, a[1]);
  kernels::scale(DType::kF32, elems, 0, a[3], a[3]);  // v = 0
  Doubles w = tail(DType::kF32, a[0], elems, kTail), m = tail(DType::kF32, a[2], elems, kTail), v(kTail);
  const Doubles grad = tail(d, a[1], elems, kTail);
  kernels::adamw({.dtype = kF64, .grad_dtype = kF64, .elems = kTail}, w.data(), grad.data(), m.data(), v.data());
  const kernels::AdamW op{.dtype = DType::kF32, .grad_dtype = d, .elems = elems};
  auto kernel = [=, &a] { kernels::adamw(op, a[0], a[1], a[2], a[3]); };
  const double bytes = static_cast<double>(elems) * (24.0 + static_cast<double>(element_bytes(d)));
  return {bytes, kernel, DType::kF32, a[0], elems, w};
}

// fp32 to `d`, and `d` to fp32.
Run cast_from_fp32(DType d, Arrays& a) {
  const std::int64_t elems = elems_of(DType::kF32);
  kernels::cast(elems_of(d) / 2, d, a[1], DType::kF32, a[0]);
  const Doubles want = tail(DType::kF32, a[0], elems, kTail);
  auto kernel = [=, &a] { kernels::cast(elems, DType::kF32, a[0], d, a[1]); };
  return {static_cast<double>(elems) * (4.0 + static_cast<double>(element_bytes(d))), kernel, d, a[1], elems, want};
}
Run cast_to_fp32(DType d, Arrays& a) {
  const std::int64_t elems = elems_of(DType::kF32);
  const Doubles want = tail(d, a[0], elems, kTail);
  auto kernel = [=, &a] { kernels::cast(elems, d, a[0], DType::kF32, a[1]); };
  return {static_cast<double>(elems) * (4.0 + static_cast<double>(element_bytes(d))),
          kernel,
          DType::kF32,
          a[1],
          elems,
          want};
}

constexpr std::int64_t kNoTarget = -1;
void write_targets(std::int64_t rows, void* targets) {
  for (std::int64_t row = 0; row < rows; ++row) static_cast<std::int64_t*>(targets)[row] = row * 7919 % kVocab;
}

Run cross_entropy_forward(DType d, Arrays& a) {
  const std::int64_t rows = elems_of(d) / kVocab;
  write_targets(rows, a.small(0));
  const Doubles x = tail(d, a[0], rows * kVocab, kVocab);
  const std::int64_t target = 0;
  Doubles lse(1);
  kernels::cross_entropy_forward({kF64, 1, kVocab, DType::kI64, kNoTarget}, x.data(), &target, lse.data());
  auto kernel = [=, &a] {
    kernels::cross_entropy_forward({d, rows, kVocab, DType::kI64, kNoTarget}, a[0], a.small(0), a.small(1));
  };
  return {static_cast<double>(rows * kVocab) * static_cast<double>(element_bytes(d)),
          kernel,
          DType::kF32,
          a.small(1),
          rows,
          lse};
}

Run cross_entropy_backward(DType d, Arrays& a) {
  const std::int64_t rows = elems_of(d) / kVocab;
  write_targets(rows, a.small(0));
  kernels::cross_entropy_forward({d, rows, kVocab, DType::kI64, kNoTarget}, a[0], a.small(0), a.small(1));
  const Doubles x = tail(d, a[0], rows * kVocab, kVocab), lse = tail(DType::kF32, a.small(1), rows, 1);
  const std::int64_t target = (rows - 1) * 7919 % kVocab;
  Doubles dx(kVocab);
  kernels::cross_entropy_backward({kF64, 1, kVocab, DType::kI64, kNoTarget}, x.data(), &target, lse.data(), 1,
                                  dx.data());
  auto kernel = [=, &a] {
    kernels::cross_entropy_backward({d, rows, kVocab, DType::kI64, kNoTarget}, a[0], a.small(0), a.small(1), 1, a[1]);
  };
  return {2.0 * static_cast<double>(rows * kVocab) * static_cast<double>(element_bytes(d)),
          kernel,
          d,
          a[1],
          rows * kVocab,
          dx};
}

Run add(DType d, Arrays& a) {
  const std::int64_t elems = elems_of(d);
  const Doubles x = tail(d, a[0], elems, kTail), y = tail(d, a[1], elems, kTail);
  Doubles sum(kTail);
  kernels::add(kF64, kTail, x.data(), y.data(), sum.data());
  return {3.0 * kArrayBytes, [=, &a] { kernels::add(d, elems, a[0], a[1], a[2]); }, d, a[2], elems, sum};
}

Run sum_of_squares(DType d, Arrays& a) {
  const std::int64_t elems = elems_of(d);
  Doubles want(1);
  for (std::int64_t begin = 0; begin < elems; begin += kDim) {
    for (double value : tail(d, a[0], begin + kDim, kDim)) want[0] += value * value;
  }
  auto* out = static_cast<double*>(a.small(0));
  return {1.0 * kArrayBytes, [=, &a] { *out = kernels::sum_of_squares(d, elems, a[0]); }, kF64, out, 1, want};
}

// Four ranks' inputs into one output. Single-threaded by contract.
Run sum_in_order(DType d, Arrays& a) {
  const std::int64_t elems = elems_of(d);
  Doubles sum(kTail);
  for (int rank = 0; rank < 4; ++rank) {
    const Doubles x = tail(d, a[rank], elems, kTail);
    kernels::axpy(kF64, kTail, 0.25, x.data(), sum.data());
  }
  auto kernel = [=, &a] {
    const void* inputs[] = {a[0], a[1], a[2], a[3]};
    kernels::sum_in_order(d, inputs, 0.25, elems, a[4]);
  };
  return {5.0 * kArrayBytes, kernel, d, a[4], elems, sum};
}

void check(const Run& run) {
  const Doubles got = tail(run.out_dtype, run.out, run.out_elems, static_cast<std::int64_t>(run.expected.size()));
  // One rounding of bf16 is 2^-8; of fp32 arithmetic 2^-24, a few dozen times.
  const double rounding = run.out_dtype == DType::kBF16 ? 0x1p-7 : run.out_dtype == kF64 ? 1e-9 : 0x1p-18;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double want = run.expected[i];
    require(std::abs(got[i] - want) <= rounding * (std::abs(want) + 0x1p-4), "element {} from the end is {}, not {}",
            got.size() - i, got[i], want);
  }
}

double seconds_of(const std::function<void()>& kernel) {
  const auto start = std::chrono::steady_clock::now();
  kernel();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void measure(benchmark::State& state, Run (*make)(DType, Arrays&), DType dtype, int threads) {
  static Arrays arrays;
  RankContext context(0, 1);
  context.slot<ComputePool>().resize(threads);
  const RankScope scope(context);
  arrays.fill(dtype);
  const Run run = make(dtype, arrays);
  run.kernel();
  check(run);
  const double triad = triad_bytes_per_second(threads, static_cast<std::size_t>(kArrayBytes));
  double best = 1e300;
  for (auto _ : state) {
    const double seconds = seconds_of(run.kernel);
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
  }
  state.counters["GB_s"] = run.bytes / best * 1e-9;
  state.counters["triad_GB_s"] = triad * 1e-9;
  state.counters["of_triad"] = run.bytes / best / triad;
}

struct Case {
  const char* name;
  Run (*make)(DType, Arrays&);
  bool fp32 = true;  // casts are from or to fp32 already
  bool threaded = true;
};

void register_cases() {
  static constexpr int kRuns = 7;
  for (const Case& c :
       {Case{"rms_norm_forward", rms_forward}, Case{"rms_norm_backward", rms_backward},
        Case{"layer_norm_forward", layer_forward}, Case{"swiglu_forward", swiglu_forward},
        Case{"swiglu_backward", swiglu_backward}, Case{"gelu_forward", gelu_forward}, Case{"rope", rope},
        Case{"adamw", adamw}, Case{"cast_from_fp32", cast_from_fp32, false}, Case{"cast_to_fp32", cast_to_fp32, false},
        Case{"add", add}, Case{"cross_entropy_forward", cross_entropy_forward},
        Case{"cross_entropy_backward", cross_entropy_backward}, Case{"sum_of_squares", sum_of_squares},
        Case{"sum_in_order", sum_in_order, true, false}}) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      if (dtype == DType::kF32 && !c.fp32) continue;
      for (int threads : {1, 2}) {
        if (threads > 1 && !c.threaded) continue;
        const std::string name = fmt::format("{}/{}/threads:{}", c.name, loom::name(dtype), threads);
        benchmark::RegisterBenchmark(name.c_str(), measure, c.make, dtype, threads)
            ->Iterations(kRuns)
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
}

}  // namespace
}  // namespace loom::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  loom::bench::register_cases();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
