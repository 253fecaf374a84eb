// Collectives of two threads as ranks against memcpy. Counter `ratio`: aims are 0.9 and more.

#include <benchmark/benchmark.h>

#include "bench/collective_round.h"
#include "engine/launch/run_ranks.h"

namespace loom::bench {
namespace {

constexpr int kRanks = 2;

void collective(benchmark::State& state, Collective what, std::size_t bytes) {
  launch::run_ranks(kRanks, {}, [&](RankContext& context, comm::World& world) {
    const auto group = world.everyone();
    CollectiveRound round(*group, what, bytes);
    if (context.rank() != 0) {
      for (int i = 0; i < rounds_for(bytes); ++i) round.run();
      return;
    }
    for (auto _ : state) state.SetIterationTime(round.run());
    state.counters["ratio"] = round.ratio();
    state.counters["ratio_of_medians"] = round.ratio_of_medians();
  });
}

void register_all() {
  for (int what = 0; what < kCollectives; ++what) {
    for (const std::size_t megabytes : {1, 16, 64}) {
      const std::size_t bytes = megabytes << 20;
      const auto which = static_cast<Collective>(what);
      const std::string title = "threads/" + name(which) + "/MB:" + std::to_string(megabytes);
      benchmark::RegisterBenchmark(title.c_str(), [=](benchmark::State& state) { collective(state, which, bytes); })
          ->UseManualTime()
          ->Iterations(rounds_for(bytes))
          ->Unit(benchmark::kMillisecond);
    }
  }
}

}  // namespace
}  // namespace loom::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  loom::bench::register_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
