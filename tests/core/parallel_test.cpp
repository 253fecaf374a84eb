// Promise: a parallel loop runs every tile once, with any number of threads, and rethrows what a tile throws.
#include "engine/core/parallel.h"

#include <atomic>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/rank_context.h"

namespace loom {
namespace {

// Thread counts this build accepts: with serial loops only 1.
std::vector<int> thread_counts() {
  std::vector<int> counts;
  for (int threads : {1, 2, 3}) {
    try {
      ComputePool().resize(threads);
      counts.push_back(threads);
    } catch (const ConfigError& error) {
      EXPECT_EQ(std::string(error.what()), std::to_string(threads) +
                                               " compute threads requested, but this build has serial loops "
                                               "(LOOM_PARALLEL=serial); use 1");
    }
  }
  EXPECT_EQ(counts.front(), 1);
  return counts;
}

template <class Body>
void on_rank(int threads, Body body) {
  RankContext context(0, 1);
  context.slot<ComputePool>().resize(threads);
  EXPECT_EQ(context.slot<ComputePool>().compute_threads(), threads);
  const RankScope scope(context);
  body();
}

void expect_every_tile_once() {
  for (std::int64_t tiles : {0, 1, 2, 7, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<std::size_t>(tiles));
    parallel_for(tiles, [&](std::int64_t tile) { ++runs[static_cast<std::size_t>(tile)]; });
    for (const auto& count : runs) EXPECT_EQ(count, 1);
  }
}

void expect_exception_comes_out() {
  for (std::int64_t tiles : {1, 50}) {
    try {
      parallel_for(tiles, [&](std::int64_t tile) {
        if (tile == tiles / 2) raise<DeviceError>("tile {} failed", tile);
      });
      FAIL() << "nothing was thrown";
    } catch (const DeviceError& error) {
      EXPECT_NE(std::string(error.what()).find("tile " + std::to_string(tiles / 2) + " failed"), std::string::npos);
    }
  }
}

TEST(ParallelFor, RunsEveryTileOnce) {
  expect_every_tile_once();  // no rank current: a plain loop
  for (int threads : thread_counts()) on_rank(threads, expect_every_tile_once);
}

TEST(ParallelFor, RethrowsWhatATileThrowsAndWorksAfterwards) {
  expect_exception_comes_out();
  for (int threads : thread_counts()) {
    on_rank(threads, [] {
      expect_exception_comes_out();
      expect_every_tile_once();
    });
  }
}

TEST(ParallelFor, WithoutARankRunsInOrderInTheCaller) {
  std::vector<std::int64_t> order;
  parallel_for(5, [&](std::int64_t tile) { order.push_back(tile); });
  EXPECT_EQ(order, (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
}

TEST(ComputePool, HasOneThreadUnlessTold) {
  RankContext context(0, 1);
  EXPECT_EQ(context.slot<ComputePool>().compute_threads(), 1);
}

}  // namespace
}  // namespace loom
