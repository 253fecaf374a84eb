// Promise: degrees are checked once, with one equation; data ranks number the parts of a batch; one rank reports.
// World:   simulated, 8 ranks.

#include "engine/train/parallel_dims.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/comm/simulated/simulated.h"
#include "engine/core/error.h"
#include "tests/support/files.h"

namespace loom::train {
namespace {

using testing::ElementsAre;

std::string refusal(const ParallelDegrees& degrees, int ranks) {
  return test::message_of<ConfigError>([&] { ParallelDims(degrees, ranks); });
}

TEST(Degrees, ThatDoNotMultiplyToTheRanksAreRefusedWithTheEquation) {
  EXPECT_EQ(refusal({.dp_replicate = 2, .dp_shard = 2}, 8),
            "dp_replicate 2 x dp_shard 2 = 4, but 8 ranks run; give degrees whose product is 8");
  EXPECT_EQ(refusal({.dp_shard = 2}, 1),
            "dp_replicate 1 x dp_shard 2 = 2, but 1 rank runs; give degrees whose product is 1");
}

TEST(Degrees, OfRanksThatShareSequencesAreInTheEquation) {
  EXPECT_EQ(refusal({.dp_shard = 2, .cp = 2}, 8),
            "dp_replicate 1 x dp_shard 2 x cp 2 = 4, but 8 ranks run; give degrees whose product is 8");
}

TEST(Degrees, OfStagesAreSlowest) {
  const ParallelDims dims({.dp_shard = 2, .tp = 2, .pp = 2}, 8);
  EXPECT_EQ(dims.data_size(), 2);
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(dims.data_rank(rank), rank / 2 % 2);
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(dims.reports(rank), rank == 4);  // the first of the last stage
  const auto world = comm::make_simulated_world(5, 8);
  const auto mesh = comm::DeviceMesh::create(*world, dims.axes());
  EXPECT_THAT(dims.loss_axis(mesh).ranks(), ElementsAre(1, 3, 5, 7));
}

TEST(Degrees, OfRanksThatShareMatricesAreFastest) {
  const ParallelDims dims({.dp_shard = 2, .cp = 2, .tp = 2}, 8);
  EXPECT_EQ(dims.data_size(), 2);
  EXPECT_EQ(dims.data_rank(5), 1);
  EXPECT_EQ(dims.context_rank(5), 0);
  EXPECT_EQ(dims.context_rank(6), 1);
}

TEST(Degrees, AreOneOrMore) {
  EXPECT_EQ(refusal({.dp_shard = 0}, 8), "dp_shard is 0, expected 1 or more");
  EXPECT_EQ(refusal({.dp_shard = 8, .tp = -1}, 8), "tp is -1, expected 1 or more");
}

TEST(DataRanks, NumberThePartsOfABatchOverReplicasAndShards) {
  const ParallelDims dims({.dp_replicate = 2, .dp_shard = 4}, 8);
  EXPECT_EQ(dims.data_size(), 8);
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(dims.data_rank(rank), rank);
}

TEST(DataRanks, AreTheSameForRanksThatShareSequences) {
  const ParallelDims dims({.dp_replicate = 2, .dp_shard = 2, .cp = 2}, 8);
  EXPECT_EQ(dims.data_size(), 4);
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(dims.data_rank(rank), rank / 2);
}

TEST(TheLoss, IsAveragedOverAllWhoReadDifferentSamples) {
  const auto world = comm::make_simulated_world(5, 8);
  const ParallelDims dims({.dp_replicate = 2, .dp_shard = 4}, 8);
  const auto mesh = comm::DeviceMesh::create(*world, dims.axes());
  EXPECT_THAT(dims.loss_axis(mesh).ranks(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(dims.loss_axis(mesh).name(), "loss");
}

TEST(TheLoss, IsReportedByOneRank) {
  const ParallelDims dims({.dp_replicate = 2, .dp_shard = 4}, 8);
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(dims.reports(rank), rank == 0);
}

TEST(TheMesh, HasTorchtitansAxesSlowestFirst) {
  const std::vector<comm::AxisSize> expected = {{"pp", 1}, {"dp_replicate", 2}, {"dp_shard", 4}, {"cp", 1}, {"tp", 1}};
  EXPECT_EQ(ParallelDims({.dp_replicate = 2, .dp_shard = 4}, 8).axes(), expected);
}

}  // namespace
}  // namespace loom::train
