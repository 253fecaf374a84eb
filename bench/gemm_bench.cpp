// Matrix products of decoder layers as a share of the multiply-add peak measured beside them.
//
// Letters   M tokens, K inputs and N outputs of a linear layer y = x W^T with W [N,K]:
//           fwd [M,K].[N,K]^T, dx [M,N].[N,K], dw [M,N]^T.[M,K] (written in fp32).
// Total     of a dtype and thread count: all FLOPs over those the peak would have done in the same time.

#include <benchmark/benchmark.h>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>

#include "bench/timing.h"
#include "engine/core/error.h"
#include "engine/kernels/gemm.h"

namespace loom::bench {
namespace {

using kernels::Gemm;

enum class Direction { kForward, kInputGradient, kWeightGradient };

Gemm product(Direction direction, std::int64_t m, std::int64_t n, std::int64_t k, DType dtype) {
  Gemm op;
  op.ab = op.c = dtype;
  switch (direction) {
    case Direction::kForward:
      op.m = m, op.n = n, op.k = k, op.transpose_b = true;
      break;
    case Direction::kInputGradient:
      op.m = m, op.n = k, op.k = n;
      break;
    case Direction::kWeightGradient:
      op.m = n, op.n = k, op.k = m, op.transpose_a = true, op.c = DType::kF32;
      break;
  }
  return op;
}

const char* label(Direction direction) {
  switch (direction) {
    case Direction::kForward:
      return "fwd";
    case Direction::kInputGradient:
      return "dx";
    default:
      return "dw";
  }
}

// Elements spread over C against sums in double.
void check(const Gemm& op, const Bytes& a, const Bytes& b, const Bytes& c) {
  for (std::int64_t i = 0; i < 97; ++i) {
    const std::int64_t row = i * 7919 % op.m, column = i * 104729 % op.n;
    double expected = 0;
    for (std::int64_t e = 0; e < op.k; ++e) {
      expected += at(a, op.ab, op.transpose_a ? e * op.m + row : row * op.k + e) *
                  at(b, op.ab, op.transpose_b ? column * op.k + e : e * op.n + column);
    }
    const double actual = at(c, op.c, row * op.n + column);
    const double allowed = 1e-3 + (op.c == DType::kBF16 ? 0x1p-8 * std::abs(expected) : 0);
    require(std::abs(actual - expected) <= allowed, "gemm gives {}, expected {}", actual, expected);
  }
}

struct Total {
  double flops = 0;
  double flops_at_peak = 0;  // what the peak would have done in the same time
};
std::map<std::string, Total>& totals() {
  static std::map<std::string, Total> all;
  return all;
}

void measure(benchmark::State& state, const Gemm& op, int threads) {
  const Bytes a = random_array(op.ab, op.m * op.k, 1), b = random_array(op.ab, op.k * op.n, 2);
  Bytes c((op.m * op.n) * element_bytes(op.c));
  const ThreadsScope scope(threads);
  gemm(op, a.data(), b.data(), c.data());
  check(op, a, b, c);
  const double flops = 2 * static_cast<double>(op.m) * static_cast<double>(op.n) * static_cast<double>(op.k);
  PeakShare share(op.ab, threads);
  for (auto _ : state) share.time([&] { gemm(op, a.data(), b.data(), c.data()); });
  const double percent = share.percent(flops);
  state.counters["%peak"] = percent;
  state.counters["GFLOP/s"] = share.flops_per_second(flops) / 1e9;
  if (state.iterations() > 1) {
    Total& total = totals()[fmt::format("{}/threads{}", name(op.ab), threads)];
    total.flops += flops;
    total.flops_at_peak += flops / (percent / 100);
  }
}

void add(Direction direction, std::int64_t m, std::int64_t n, std::int64_t k, DType dtype, int threads) {
  const Gemm op = product(direction, m, n, k, dtype);
  const std::string text =
      fmt::format("gemm/{}/{}/M{}_N{}_K{}/threads{}", name(dtype), label(direction), m, n, k, threads);
  benchmark::RegisterBenchmark(text.c_str(), [=](benchmark::State& state) { measure(state, op, threads); })
      ->Unit(benchmark::kMillisecond)
      ->Iterations(std::max<std::int64_t>(7, 40'000'000'000 / (2 * m * n * k)));
}

struct Layer {
  std::int64_t n, k;
};
constexpr Layer kLayers[] = {{512, 512},  {1536, 512}, {512, 1536},  {1024, 512}, {512, 1024},
                             {4864, 896}, {896, 4864}, {1024, 2048}, {2048, 1024}};

}  // namespace
}  // namespace loom::bench

int main(int argc, char** argv) {
  using namespace loom::bench;
  for (const int threads : thread_counts()) {
    for (const loom::DType dtype : {loom::DType::kF32, loom::DType::kBF16}) {
      for (const std::int64_t tokens : {512, 2048}) {
        for (const Layer& layer : kLayers) {
          for (const Direction direction :
               {Direction::kForward, Direction::kInputGradient, Direction::kWeightGradient}) {
            add(direction, tokens, layer.n, layer.k, dtype, threads);
          }
        }
      }
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  for (const auto& [label, total] : totals()) {
    fmt::print("{}: {:.1f} % of peak, weighted by FLOPs ({})\n", label, 100 * total.flops / total.flops_at_peak,
               loom::kernels::gemm_backend());
  }
}
