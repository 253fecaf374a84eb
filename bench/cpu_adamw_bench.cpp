// AdamW on tensors in host memory, nn::AdamW::step() as a run with offload_to_cpu has it, against memory: 24 bytes a
// parameter and those of its gradient a second, as a ratio to STREAM triad measured in turn in the same process.
//
// Memory   pinned, from the allocator of offload_to_cpu. One tensor of 32 Mi elements, or 64 of half a Mi: 512 MiB with
//          gradient and moments, beyond the caches.
// Checked  before it is timed: the end of the last tensor after two steps against the same steps in fp64. Counters
//          of_triad (the best of each), GB_s, triad_GB_s.
#include <algorithm>
#include <benchmark/benchmark.h>
#include <chrono>
#include <cmath>
#include <fmt/format.h>

#include "bench/limits.h"
#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/core/rng.h"
#include "engine/kernels/fused.h"
#include "engine/nn/optim/adamw.h"
#include "offload/host_allocator.h"

namespace loom::bench {
namespace {

constexpr std::int64_t kElems = std::int64_t{1} << 25;
constexpr std::int64_t kTail = 1000;
constexpr int kSteps = 10;

Tensor host_tensor(std::int64_t elems, DType dtype) {
  auto storage = std::make_shared<Storage>(Place::kHost, &device::Device::current(), elems * element_bytes(dtype),
                                           device::MemCategory::kParameter, "tensor of the host", /*pinned=*/true);
  storage->allocate();
  return {std::move(storage), 0, {elems}, dtype};
}

// Normal numbers with a prime period, shifted by `shift`.
void fill(const Tensor& tensor, std::uint64_t shift) {
  constexpr std::int64_t kPeriod = 65521;
  std::vector<float> numbers(kPeriod);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(normal_at(7, i + shift));
  auto* bytes = static_cast<std::byte*>(tensor.raw());
  for (std::int64_t at = 0; at < tensor.numel(); at += kPeriod) {
    kernels::cast(std::min(kPeriod, tensor.numel() - at), DType::kF32, numbers.data(), tensor.dtype(),
                  bytes + at * element_bytes(tensor.dtype()));
  }
}

std::vector<double> tail(const Tensor& tensor) {
  std::vector<double> values(kTail);
  const auto* end = static_cast<const std::byte*>(tensor.raw()) + tensor.nbytes();
  kernels::cast(kTail, tensor.dtype(), end - kTail * element_bytes(tensor.dtype()), DType::kF64, values.data());
  return values;
}

std::vector<Tensor> parameters(int count, DType grad_dtype) {
  std::vector<Tensor> made;
  for (int i = 0; i < count; ++i) {
    const Tensor parameter = host_tensor(kElems / count, DType::kF32), grad = host_tensor(kElems / count, grad_dtype);
    fill(parameter, 3 * static_cast<std::uint64_t>(i));
    fill(grad, 3 * static_cast<std::uint64_t>(i) + 1);
    parameter.set_requires_grad(true);
    parameter.set_grad(grad);
    made.push_back(parameter);
  }
  return made;
}

// Two steps.
void check(nn::AdamW& optimizer, const Tensor& parameter) {
  std::vector<double> want = tail(parameter), m(kTail), v(kTail);
  const std::vector<double> grad = tail(parameter.grad());
  for (int step = 1; step <= 2; ++step) {
    optimizer.step();
    kernels::adamw({.dtype = DType::kF64, .grad_dtype = DType::kF64, .elems = kTail, .step = step}, want.data(),
                   grad.data(), m.data(), v.data());
  }
  const std::vector<double> got = tail(parameter);
  for (std::size_t i = 0; i < got.size(); ++i) {
    require(std::abs(got[i] - want[i]) <= 0x1p-18 * (std::abs(want[i]) + 0x1p-4),
            "element {} of the tail is {}, not {}", i, got[i], want[i]);
  }
}

void cpu_adamw(benchmark::State& state, int tensors, DType grad_dtype, int threads) {
  RankContext context(0, 1);
  const RankScope scope(context);
  device::DeviceOptions device;
  device.host_allocator = offload::make_host_allocator();
  device::Device::install(context, device);
  context.slot<ComputePool>().resize(threads);
  const std::vector<Tensor> updated = parameters(tensors, grad_dtype);
  const kernels::AdamW defaults{};
  nn::AdamW optimizer(updated, {.lr = defaults.lr,
                                .beta1 = defaults.beta1,
                                .beta2 = defaults.beta2,
                                .eps = defaults.eps,
                                .weight_decay = defaults.weight_decay});
  check(optimizer, updated.back());
  const double bytes = static_cast<double>(kElems) * (24.0 + static_cast<double>(element_bytes(grad_dtype)));
  double best = 1e300, triad = 0;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    optimizer.step();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
    triad = std::max(triad, triad_bytes_per_second(threads, static_cast<std::size_t>(kElems) * sizeof(float)));
  }
  state.counters["GB_s"] = bytes / best * 1e-9;
  state.counters["triad_GB_s"] = triad * 1e-9;
  state.counters["of_triad"] = bytes / best / triad;
}

void register_cases() {
  for (const int tensors : {1, 64}) {
    for (const DType grad : {DType::kF32, DType::kBF16}) {
      for (const int threads : {1, 2}) {
        const std::string name = fmt::format("cpu_adamw/{}/tensors:{}/threads:{}", loom::name(grad), tensors, threads);
        benchmark::RegisterBenchmark(name.c_str(), cpu_adamw, tensors, grad, threads)
            ->Iterations(kSteps)
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
