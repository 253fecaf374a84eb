// Grouped products of experts against one dense product of as many FLOPs, forward and backward, on two threads.
// `over_dense` is the time of the dense product by that of the groups, taken in turn. The results are compared before
// they are timed.

#include <algorithm>
#include <benchmark/benchmark.h>
#include <chrono>
#include <cmath>
#include <functional>
#include <vector>

#include "bench/turns.h"
#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/device/device.h"
#include "engine/launch/run_ranks.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops/general.h"
#include "engine/tensor/ops/moe.h"

namespace loom::bench {
namespace {

constexpr std::int64_t kHidden = 1024, kInner = 1408;
constexpr int kRounds = 9;

Tensor values(const Shape& shape, int which) {
  std::vector<float> all(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = static_cast<float>(std::sin(0.37 * static_cast<double>(i % 8191) + which));
  }
  const Tensor x = Tensor::from(all, shape);
  x.set_requires_grad(true);
  return x;
}

void forward_backward(const Tensor& x, const Tensor& weight, const std::function<Tensor()>& product) {
  for (Tensor t : {x, weight}) t.set_grad({});
  autograd::backward(ops::sum(product()));
}

// Every expert has the same weight, so that the products are those of the dense layer.
double over_dense(std::int64_t experts, std::int64_t rows) {
  double ratio = 0;
  launch::run_ranks(1, {std::chrono::minutes(2)}, [&](RankContext& context, comm::World&) {
    device::Device::install(context, {.executor = device::ExecutorKind::kThreaded});
    context.slot<ComputePool>().resize(2);
    const Tensor x = values({rows, kHidden}, 1), dense = values({kInner, kHidden}, 2);
    const std::vector<Tensor> copies(static_cast<std::size_t>(experts),
                                     ops::reshape(dense.detach(), {1, kInner, kHidden}));
    const Tensor grouped = ops::concat(copies, 0);
    grouped.set_requires_grad(true);
    std::vector<std::int64_t> choices;
    for (std::int64_t row = 0; row < rows; ++row) choices.push_back(row * experts / rows);
    const ops::ExpertRows order = ops::sort_by_expert(Tensor::from(choices, {rows, 1}), experts);
    const auto as_group = [&] { return ops::grouped_linear(x, grouped, order); };
    const auto as_one = [&] { return ops::linear(x, dense); };
    const auto expected = as_one().to_vector<float>(), actual = as_group().to_vector<float>();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      require(std::abs(expected[i] - actual[i]) < 1e-2F, "row {} gives {}, expected {}", i, actual[i], expected[i]);
    }
    std::vector<double> of_group, of_one;
    for (int i = 0; i < kRounds; ++i) {
      of_group.push_back(seconds([&] { forward_backward(x, grouped, as_group); }));
      of_one.push_back(seconds([&] { forward_backward(x, dense, as_one); }));
    }
    ratio = median(of_one) / median(of_group);
  });
  return ratio;
}

void grouped(benchmark::State& state) {
  for (auto _ : state) state.counters["over_dense"] = over_dense(state.range(0), state.range(1));
}
BENCHMARK(grouped)->ArgNames({"experts", "rows"})->Args({8, 2048})->Args({8, 8192})->Args({64, 8192})->Iterations(1);

}  // namespace
}  // namespace loom::bench

BENCHMARK_MAIN();
