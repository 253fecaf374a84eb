// Promise: ranks and micro-batches share out each step's samples, and all of them are the same for any number of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <numeric>

#include "engine/core/error.h"
#include "engine/data/byte_dataset.h"
#include "tests/support/files.h"

namespace loom::data {
namespace {

using ::testing::ElementsAre;

TEST(RankRows, AreTheRanksPartOfTheStepsSamples) {
  // A step of global batch 8 begins at sample 24; of 2 ranks, rank 1 has rows 4 to 7, two at a time.
  EXPECT_THAT(rank_rows(24, 8, 1, 2, 2, 0), ElementsAre(28, 29));
  EXPECT_THAT(rank_rows(24, 8, 1, 2, 2, 1), ElementsAre(30, 31));
}

TEST(RankRows, OfAllRanksAreTheStepsSamplesForAnyWorldAndMicroBatch) {
  constexpr std::int64_t kBatch = 12;
  std::vector<std::int64_t> expected(kBatch);
  std::iota(expected.begin(), expected.end(), 5 * kBatch);
  for (const int world : {1, 2, 3, 4, 6, 12}) {
    for (const std::int64_t micro : {1, 2, 3}) {
      if (kBatch % (world * micro) != 0) continue;
      std::vector<std::int64_t> rows;
      for (int rank = 0; rank < world; ++rank) {
        for (std::int64_t accum = 0; accum < kBatch / (world * micro); ++accum) {
          const auto part = rank_rows(5 * kBatch, kBatch, rank, world, micro, accum);
          rows.insert(rows.end(), part.begin(), part.end());
        }
      }
      EXPECT_EQ(rows, expected) << world << " ranks, micro-batch " << micro;
    }
  }
}

TEST(RankRows, RefuseABatchThatDoesNotDivide) {
  EXPECT_EQ(test::message_of<InvariantError>([] { rank_rows(0, 10, 0, 4, 1, 0); }),
            "internal: global batch 10 is not a multiple of 4 ranks times micro-batch 1");
  EXPECT_EQ(test::message_of<InvariantError>([] { rank_rows(0, 8, 0, 4, 1, 2); }), "internal: micro-batch 2 of 2");
  EXPECT_EQ(test::message_of<InvariantError>([] { rank_rows(0, 8, 4, 4, 1, 0); }), "internal: rank 4 of 4");
}

}  // namespace
}  // namespace loom::data
