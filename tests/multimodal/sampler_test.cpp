// Promise: ranks get the samples that MindSpeed-MM's BaseRandomBatchSampler gives them, in torch's order, from any
//          consumed sample on; the numbers of our loaders lead to the same samples.
// World:   numbers alone; the permutations are torch 2.15's: torch.randperm(n, generator=Generator().manual_seed(s)).
#include "engine/multimodal/sampler.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <numeric>
#include <set>

#include "engine/core/error.h"
#include "engine/multimodal/torch_permutation.h"
#include "tests/support/files.h"

namespace loom::multimodal {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using Numbers = std::vector<std::int64_t>;

TEST(TorchPermutation, IsTorchsNumberForNumber) {
  EXPECT_THAT(torch_permutation(10, 0), ElementsAre(4, 1, 7, 5, 3, 9, 0, 8, 6, 2));
  EXPECT_THAT(torch_permutation(10, 1), ElementsAre(5, 6, 1, 2, 0, 8, 9, 3, 7, 4));
  EXPECT_THAT(torch_permutation(7, 3), ElementsAre(5, 3, 4, 6, 0, 2, 1));
  EXPECT_THAT(torch_permutation(2, 0), ElementsAre(0, 1));
  EXPECT_THAT(torch_permutation(1, 5), ElementsAre(0));
  EXPECT_THAT(torch_permutation(0, 5), ElementsAre());
}

TEST(TorchPermutation, OfManyNumbersIsTorchsToo) {
  const Numbers order = torch_permutation(100000, 4);
  EXPECT_THAT(Numbers(order.begin(), order.begin() + 5), ElementsAre(61530, 78376, 91639, 43027, 14605));
  EXPECT_THAT(Numbers(order.end() - 3, order.end()), ElementsAre(9569, 95577, 92107));
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < order.size(); ++i) sum += static_cast<std::int64_t>(i) * order[i];
  EXPECT_EQ(sum, 249879271683533);
}

TEST(TorchPermutation, TakesTheLowBitsOfTheSeed) {
  const Numbers expected{5, 13, 2, 11, 19, 18, 1, 9, 4, 7, 0, 14, 16, 10, 15, 3, 6, 17, 12, 8};
  EXPECT_THAT(torch_permutation(20, (std::uint64_t{1} << 32) + 1), ElementsAreArray(expected));
  EXPECT_THAT(torch_permutation(20, 1), ElementsAreArray(expected));
}

RandomBatchSampler sampler(std::int64_t samples, std::int64_t batch, std::int64_t ranks, bool shuffle = false,
                           bool sharding = false, std::int64_t micro_batches = 1) {
  return RandomBatchSampler({.where = "data.json",
                             .samples = samples,
                             .micro_batch_size = batch,
                             .data_ranks = ranks,
                             .micro_batches = micro_batches,
                             .shuffle = shuffle,
                             .data_sharding = sharding});
}

TEST(Sampler, DealsEntriesToRanksInTurn) {
  const auto s = sampler(10, 2, 2);
  EXPECT_EQ(s.active(), 8);
  EXPECT_THAT(s.batch(0, 0), ElementsAre(0, 2));
  EXPECT_THAT(s.batch(0, 1), ElementsAre(1, 3));
  EXPECT_THAT(s.batch(4, 0), ElementsAre(4, 6));
  EXPECT_THAT(s.batch(4, 1), ElementsAre(5, 7));
  EXPECT_EQ(s.batch(8, 0), s.batch(0, 0));  // the next epoch
}

TEST(Sampler, GivesAllRanksTheSameNumberOfBatches) {
  const auto s = sampler(11, 1, 2);
  EXPECT_EQ(s.active(), 10);  // 5 batches of each rank
  EXPECT_THAT(s.batch(8, 0), ElementsAre(8));
  EXPECT_THAT(s.batch(8, 1), ElementsAre(9));
  EXPECT_THAT(s.batch(10, 0), ElementsAre(0));
}

TEST(Sampler, ShufflesByTheEpochsNumber) {
  const auto s = sampler(10, 2, 2, true);
  // The permutations of 10 by the seeds 0 and 1, without their last two entries.
  EXPECT_THAT(s.batch(0, 0), ElementsAre(4, 7));
  EXPECT_THAT(s.batch(0, 1), ElementsAre(1, 5));
  EXPECT_THAT(s.batch(4, 0), ElementsAre(3, 0));
  EXPECT_THAT(s.batch(4, 1), ElementsAre(9, 8));
  EXPECT_THAT(s.batch(8, 0), ElementsAre(5, 1));
  EXPECT_THAT(s.batch(12, 1), ElementsAre(8, 3));
  EXPECT_THAT(s.batch(4, 0), ElementsAre(3, 0));  // any order of calls
}

TEST(Sampler, PermutesWholeMicroBatchesOnly) {
  // 15 samples, micro-batches of 2: 14 numbers are permuted, 12 of them are used.
  const auto s = sampler(15, 2, 2, true);
  const Numbers order = torch_permutation(14, 0);
  EXPECT_THAT(s.batch(8, 1), ElementsAre(order[9], order[11]));
}

TEST(Sampler, KeepsRanksToTheirBlocksWithSharding) {
  const auto s = sampler(11, 2, 2, true, true);
  const Numbers order = torch_permutation(4, 0);  // 11 div 4 times 2
  EXPECT_THAT(s.batch(0, 0), ElementsAre(order[0], order[1]));
  EXPECT_THAT(s.batch(0, 1), ElementsAre(4 + order[0], 4 + order[1]));
  EXPECT_THAT(s.batch(4, 1), ElementsAre(4 + order[2], 4 + order[3]));
}

TEST(Sampler, GivesTheNumbersOfOurLoadersTheSamplesOfTheirRankAndMicroBatch) {
  for (const bool sharding : {false, true}) {
    const auto s = sampler(23, 2, 3, true, sharding, 2);
    // A step is 12 samples: rank r has the numbers from 4 r on, two for each micro-batch.
    for (std::int64_t number = 0; number < 60; ++number) {
      const std::int64_t rank = number % 12 / 4, micro_batch = number % 4 / 2;
      const Numbers batch = s.batch(number / 12 * 12 + micro_batch * 6, rank);
      EXPECT_EQ(s.index_of(number), batch[static_cast<std::size_t>(number % 2)]) << number;
    }
  }
}

TEST(Sampler, UsesEachSampleOfAnEpochOnce) {
  const auto s = sampler(24, 2, 3, true, false, 2);
  std::set<std::int64_t> seen;
  for (std::int64_t number = 24; number < 48; ++number) seen.insert(s.index_of(number));
  EXPECT_EQ(seen.size(), 24U);
}

TEST(Sampler, RefusesWhatFillsNoBatch) {
  EXPECT_EQ(test::message_of<ConfigError>([] { sampler(3, 2, 2); }),
            "data.json has 3 samples, and a micro-batch of 2 on 2 ranks takes 4; use a smaller --micro-batch-size, "
            "fewer ranks or more data");
  EXPECT_EQ(test::message_of<ConfigError>([] { sampler(kMostPermuted, 1, 1, true); }),
            "data.json has 214748364 samples; up to 214748363 can be shuffled: write shuffle: false");
  EXPECT_EQ(sampler(kMostPermuted, 1, 1).active(), kMostPermuted);
  EXPECT_EQ(test::message_of<InvariantError>([] { sampler(4, 1, 2).batch(-2, 0); }),
            "internal: -2 consumed samples, batches of 2");
}

}  // namespace
}  // namespace loom::multimodal
