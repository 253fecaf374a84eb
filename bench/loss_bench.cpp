// The loss of a large vocabulary: output layer and cross-entropy in chunks against all logits at once, forward and
// backward, in time and in memory.
//
// Shape    512 tokens, d 896, vocabulary 151936 (Qwen2.5-0.5B's head), fp32 and bf16. Whole: linear, then the fused
//          cross-entropy. In chunks: ops::linear_cross_entropy of 64 tokens.
// Time     6 T V d FLOPs of three products over the multiply-add peak beside them; both in turn, as neighbours on the
//          machine slow both.
// Memory   peak of the device above the weight, in MiB.
// Check    before timing, loss and gradients of both against each other.

#include <benchmark/benchmark.h>
#include <cmath>

#include "bench/limits.h"
#include "bench/timing.h"
#include "engine/core/error.h"
#include "engine/device/device.h"
#include "engine/nn/functional.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/linear_loss.h"

namespace loom::bench {
namespace {

constexpr std::int64_t kTokens = 512;
constexpr std::int64_t kWidth = 896;
constexpr std::int64_t kVocab = 151936;
constexpr std::int64_t kChunk = 64;

struct Head {
  Head(DType dtype, int threads) {
    device::Device::install(context, {});
    context.slot<ComputePool>().resize(threads);
    context.slot<nn::KernelOptions>().fused_cross_entropy = true;
    x = filled({1, kTokens, kWidth}, dtype, 1);
    weight = filled({kVocab, kWidth}, dtype, 2);
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < kTokens; ++i) ids.push_back(7919 * i % kVocab);
    targets = Tensor::from(ids, {1, kTokens});
  }

  static Tensor filled(const Shape& shape, DType dtype, std::uint64_t key) {
    const Tensor made = Tensor::empty(shape, dtype, device::MemCategory::kActivation, "bench");
    const Bytes values = random_array(dtype, 1 << 16, key);
    auto* to = static_cast<unsigned char*>(made.raw());
    for (std::int64_t done = 0; done < made.nbytes(); done += static_cast<std::int64_t>(values.size())) {
      const auto left = std::min<std::int64_t>(made.nbytes() - done, static_cast<std::int64_t>(values.size()));
      std::memcpy(to + done, values.data(), static_cast<std::size_t>(left));
    }
    made.set_requires_grad(true);
    return made;
  }

  float whole() const { return run(nn::functional::cross_entropy(ops::linear(x, weight), targets)); }
  float chunked() const { return run(ops::linear_cross_entropy(x, weight, targets, kChunk)); }
  static float run(const Tensor& loss) {
    autograd::backward(loss);
    return loss.to_vector<float>()[0];
  }

  // Peak above what is there before, in MiB; the gradients are let go.
  template <class Work>
  double peak_mib(Work&& work) const {
    device::DeviceMemory& memory = device::Device::current().memory();
    drop_grads();
    memory.reset_peaks();
    const std::int64_t before = memory.stats().total_bytes;
    work();
    const std::int64_t peak = memory.stats().peak_bytes;
    return static_cast<double>(peak - before) / (1024.0 * 1024.0);
  }
  void drop_grads() const {
    x.set_grad({});
    weight.set_grad({});
  }

  void check(DType dtype) const {
    const double tolerance = dtype == DType::kF32 ? 1e-4 : 2e-2;
    const float loss = whole();
    const std::vector<float> of_x = x.grad().to_vector<float>(), of_weight = weight.grad().to_vector<float>();
    drop_grads();
    const float in_chunks = chunked();
    require(std::abs(loss - in_chunks) < tolerance * std::abs(loss), "loss is {} whole and {} in chunks", loss,
            in_chunks);
    near(of_x, x.grad().to_vector<float>(), tolerance);
    near(of_weight, weight.grad().to_vector<float>(), tolerance);
    drop_grads();
  }
  // As a share of the largest value.
  static void near(const std::vector<float>& a, const std::vector<float>& b, double tolerance) {
    float largest = 0;
    for (const float value : a) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < a.size(); ++i) {
      require(std::abs(a[i] - b[i]) <= tolerance * largest, "gradient {} is {} whole and {} in chunks", i, a[i], b[i]);
    }
  }

  RankContext context{0, 1};
  RankScope scope{context};
  Tensor x, weight, targets;
};

void loss(benchmark::State& state, DType dtype, int threads) {
  const Head head(dtype, threads);
  head.check(dtype);
  const double whole_mib = head.peak_mib([&] { head.whole(); });
  const double chunked_mib = head.peak_mib([&] { head.chunked(); });
  PeakShare whole(dtype, threads), chunked(dtype, threads);
  for (auto _ : state) {
    head.drop_grads();
    chunked.time([&] { head.chunked(); });
    state.PauseTiming();
    head.drop_grads();
    whole.time([&] { head.whole(); });
    state.ResumeTiming();
  }
  constexpr double kFlops = 6.0 * kTokens * kVocab * kWidth;
  state.counters["chunked_%peak"] = chunked.percent(kFlops);
  state.counters["whole_%peak"] = whole.percent(kFlops);
  state.counters["chunked_over_whole"] = whole.percent(kFlops) / chunked.percent(kFlops);
  state.counters["chunked_MiB"] = chunked_mib;
  state.counters["whole_MiB"] = whole_mib;
}

}  // namespace
}  // namespace loom::bench

int main(int argc, char** argv) {
  using namespace loom;
  using namespace loom::bench;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int threads : thread_counts()) {
      const std::string label = "loss/V151936/" + std::string(name(dtype)) + "/threads" + std::to_string(threads);
      benchmark::RegisterBenchmark(label.c_str(), [=](benchmark::State& state) { loss(state, dtype, threads); })
          ->Unit(benchmark::kMillisecond)
          ->Iterations(5);
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
