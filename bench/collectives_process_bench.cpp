// Collectives of processes as ranks against memcpy. Counter `ratio`: aims are 0.7 and more.
//
//   mpirun -n 2 --oversubscribe --bind-to none collectives_process_bench         over MPI
//   bash tests/comm/start_ranks.sh 2 collectives_process_bench                   over TCP, reading memory
//   SHARDLOOM_P2P_DISABLE=1 bash tests/comm/start_ranks.sh 2 collectives_process_bench     over sockets
//
// All processes run all cases alike; rank 0 alone reports.

#include <benchmark/benchmark.h>
#include <memory>

#include "bench/collective_round.h"
#include "engine/launch/run_ranks.h"

namespace loom::bench {
namespace {

class Silent final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

void collective(benchmark::State& state, comm::ProcessGroup& group, Collective what, std::size_t bytes) {
  CollectiveRound round(group, what, bytes);
  for (auto _ : state) state.SetIterationTime(round.run());
  state.counters["ratio"] = round.ratio();
  state.counters["ratio_of_medians"] = round.ratio_of_medians();
}

void register_all(const std::string& carrier, comm::ProcessGroup& group) {
  for (int what = 0; what < kCollectives; ++what) {
    for (const std::size_t megabytes : {1, 16, 64}) {
      const auto which = static_cast<Collective>(what);
      const std::string title = carrier + "/" + name(which) + "/MB:" + std::to_string(megabytes);
      benchmark::RegisterBenchmark(
          title.c_str(),
          [&group, which, megabytes](benchmark::State& state) { collective(state, group, which, megabytes << 20); })
          ->UseManualTime()
          ->Iterations(rounds_for(megabytes << 20))
          ->Unit(benchmark::kMillisecond);
    }
  }
}

}  // namespace
}  // namespace loom::bench

int main(int argc, char** argv) {
  using namespace loom;
  benchmark::Initialize(&argc, argv);
  const launch::Start start = launch::Start::detect();
  const char* const carrier = start.carrier == launch::Carrier::kTcp ? "tcp" : "mpi";
  launch::run(start, 1, {}, [&](RankContext& context, comm::World& world) {
    const auto group = world.everyone();
    bench::register_all(carrier, *group);
    bench::Silent silent;
    if (context.rank() == 0) {
      benchmark::RunSpecifiedBenchmarks();
    } else {
      benchmark::RunSpecifiedBenchmarks(&silent);
    }
  });
  return 0;
}
