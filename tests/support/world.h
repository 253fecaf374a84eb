// Worlds of rank threads for tests of the sharding engine: a device each, short deadlines.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#include "engine/core/parallel.h"
#include "engine/device/device.h"
#include "engine/launch/run_ranks.h"
#include "sharding/policy.h"

namespace loom::test {

struct WorldOptions {
  device::ExecutorKind executor = device::ExecutorKind::kInline;
  int compute_threads = 1;
  bool dry_run = false;
  std::chrono::milliseconds timeout{std::chrono::seconds(60)};
};

// Runs `main` on `ranks` threads, each with a device; rethrows the first failure.
inline void run_world(int ranks, const launch::RankMain& main, const WorldOptions& options = {}) {
  launch::run_ranks(ranks, {options.timeout}, [&](RankContext& context, comm::World& world) {
    device::DeviceOptions device;
    device.executor = options.executor;
    device.dry_run = options.dry_run;
    device::Device::install(context, device);
    if (options.compute_threads > 1) context.slot<ComputePool>().resize(options.compute_threads);
    main(context, world);
  });
}

// What `main` returns on every rank, by rank.
template <class Main>
auto of_each_rank(int ranks, Main main, const WorldOptions& options = {}) {
  std::vector<std::invoke_result_t<Main, RankContext&, comm::World&>> results(static_cast<std::size_t>(ranks));
  run_world(
      ranks,
      [&](RankContext& context, comm::World& world) {
        results[static_cast<std::size_t>(context.rank())] = main(context, world);
      },
      options);
  return results;
}

// Collective: shards over groups of `shard_size` ranks, replicates over the others.
inline sharding::FullyShardOptions sharded_over(comm::World& world, int shard_size,
                                                sharding::GatherLayout layout = sharding::GatherLayout::kBuffered) {
  sharding::FullyShardOptions options;
  options.axes = sharding::FsdpAxes::over(world, shard_size);
  options.layout = layout;
  return options;
}
inline sharding::FullyShardOptions sharded_over_all(comm::World& world,
                                                    sharding::GatherLayout layout = sharding::GatherLayout::kBuffered) {
  return sharded_over(world, world.size(), layout);
}

}  // namespace loom::test
