// Attention of two ranks that share sequences, of one thread each, against one rank with whole sequences and two
// threads: forward and backward together. `over_whole` is the ratio of the times, taken in turn. The result is compared
// before it is timed.

#include <algorithm>
#include <benchmark/benchmark.h>
#include <chrono>
#include <cmath>
#include <fmt/format.h>
#include <string>
#include <vector>

#include "bench/turns.h"
#include "engine/comm/mesh.h"
#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/device/device.h"
#include "engine/dist/context_attention.h"
#include "engine/launch/run_ranks.h"
#include "engine/tensor/autograd.h"
#include "engine/tensor/ops/general.h"

namespace loom::bench {
namespace {

constexpr std::int64_t kHeads = 16, kKvHeads = 4, kDim = 64;
constexpr int kRounds = 7;

struct Layout {
  const char* name;
  dist::ContextDegrees degrees;
  dist::RingKeys keys = dist::RingKeys::kPassed;
};
const Layout kLayouts[] = {{"ulysses", {1, 2}},
                           {"ring", {2, 1}},
                           {"regathered", {2, 1}, dist::RingKeys::kRegathered},
                           {"gathered", {2, 1}, dist::RingKeys::kGathered}};

Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, double scale, const ops::SegmentEnds&) {
  return ops::attention(q, k, v, scale);
}

// Values by position, head and dim, so that each rank makes its own.
Tensor input(std::int64_t heads, const std::vector<dist::TokenRange>& ranges, int which) {
  std::vector<float> values;
  for (const auto& [begin, end] : ranges) {
    for (std::int64_t at = begin * heads * kDim; at < end * heads * kDim; ++at) {
      values.push_back(static_cast<float>(std::sin(0.37 * static_cast<double>(at % 8191) + which)));
    }
  }
  const Tensor x = Tensor::from(values, {1, static_cast<std::int64_t>(values.size()) / (heads * kDim), heads, kDim});
  x.set_requires_grad(true);
  return x;
}

struct Inputs {
  Tensor q, k, v;

  explicit Inputs(const std::vector<dist::TokenRange>& ranges)
      : q(input(kHeads, ranges, 1)), k(input(kKvHeads, ranges, 2)), v(input(kKvHeads, ranges, 3)) {}
};

using Attention = std::function<Tensor(const Inputs& x)>;

std::vector<float> forward_backward(const Inputs& x, const Attention& attention, bool keep) {
  for (Tensor t : {x.q, x.k, x.v}) t.set_grad({});
  const Tensor out = attention(x);
  autograd::backward(ops::sum(out));
  return keep ? out.to_vector<float>() : std::vector<float>();
}

void install(RankContext& context, int threads) {
  device::Device::install(context, {.executor = device::ExecutorKind::kThreaded});
  context.slot<ComputePool>().resize(threads);
}

// Median seconds, and the output.
std::pair<double, std::vector<float>> whole(std::int64_t tokens) {
  std::pair<double, std::vector<float>> result;
  launch::run_ranks(1, {std::chrono::minutes(1)}, [&](RankContext& context, comm::World&) {
    install(context, 2);
    const Inputs x({{0, tokens}});
    const Attention attention = [](const Inputs& in) { return attend(in.q, in.k, in.v, 0.125, {}); };
    result.second = forward_backward(x, attention, true);
    std::vector<double> times;
    for (int i = 0; i < kRounds; ++i) times.push_back(seconds([&] { forward_backward(x, attention, false); }));
    result.first = median(times);
  });
  return result;
}

void check(const std::vector<float>& own, const std::vector<float>& all, const std::vector<dist::TokenRange>& ranges) {
  std::size_t at = 0;
  for (const auto& [begin, end] : ranges) {
    for (std::int64_t i = begin * kHeads * kDim; i < end * kHeads * kDim; ++i, ++at) {
      const float expected = all[static_cast<std::size_t>(i)];
      require(std::abs(own[at] - expected) < 1e-4F, "attention gives {}, expected {}", own[at], expected);
    }
  }
}

double shared(const Layout& layout, std::int64_t tokens, const std::vector<float>& all) {
  double result = 0;
  launch::run_ranks(2, {std::chrono::minutes(1)}, [&](RankContext& rank, comm::World& world) {
    install(rank, 1);
    const auto mesh =
        comm::DeviceMesh::create(world, {{"ring", layout.degrees.ring}, {"ulysses", layout.degrees.ulysses}});
    const dist::Context context = dist::context_of(mesh, layout.keys);
    const auto ranges = dist::token_ranges(tokens, layout.degrees, context.rank());
    const Inputs x(ranges);
    const Attention attention = [&](const Inputs& in) {
      return dist::context_attention(in.q, in.k, in.v, 0.125, {}, context, attend, "attention");
    };
    check(forward_backward(x, attention, true), all, ranges);
    std::vector<double> times;
    for (int i = 0; i < kRounds; ++i) {
      world.everyone()->barrier(comm::kHostLane, "round");
      times.push_back(seconds([&] { forward_backward(x, attention, false); }));
    }
    if (world.rank() == 0) result = median(times);
  });
  return result;
}

void measure(benchmark::State& state, const Layout& layout, std::int64_t tokens) {
  double ratio = 0;
  for (auto _ : state) {
    const auto [seconds_whole, all] = whole(tokens);
    const double seconds_shared = shared(layout, tokens, all);
    state.SetIterationTime(seconds_shared);
    ratio = seconds_shared / seconds_whole;
  }
  state.counters["over_whole"] = ratio;
}

}  // namespace
}  // namespace loom::bench

int main(int argc, char** argv) {
  for (const auto& layout : loom::bench::kLayouts) {
    for (const std::int64_t tokens : {1024, 4096}) {
      benchmark::RegisterBenchmark(fmt::format("context/{}/S{}", layout.name, tokens).c_str(),
                                   [=](benchmark::State& state) { loom::bench::measure(state, layout, tokens); })
          ->UseManualTime()
          ->Iterations(1)
          ->Unit(benchmark::kMillisecond);
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
