// Promise: sequences become samples in numpy's and Megatron's order, draw by draw.
// World:   lengths 5 3 7 4 6 (25 tokens), samples of 4, seed 1234; the numbers were computed with numpy and Megatron.
#include "engine/data/gpt_indices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <numeric>

#include "engine/data/blend.h"
#include "engine/data/numpy_random.h"

namespace loom::data {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

using Places = std::vector<std::int64_t>;

constexpr int kLengths[] = {5, 3, 7, 4, 6};

GptPlan plan_for(std::optional<std::int64_t> samples, bool keep_partial = false) {
  return plan_samples({.tokens_per_epoch = 25, .samples = samples, .seq_length = 4, .keep_partial = keep_partial})
      .value();
}

GptIndices indices_of(const GptPlan& plan) {
  return build_indices(plan, {0, 5}, 4, 1234, [](std::int64_t i) { return kLengths[i]; });
}

TEST(NumpyRandom, ShufflesAsNumpyDoes) {
  NumpyRandom random(1234);
  std::vector<int> values(10);
  const auto shuffled = [&] {
    std::iota(values.begin(), values.end(), 0);
    random.shuffle(std::span(values));
    return values;
  };
  EXPECT_THAT(shuffled(), ElementsAre(7, 2, 9, 1, 0, 8, 4, 5, 6, 3));
  EXPECT_THAT(shuffled(), ElementsAre(7, 3, 5, 1, 4, 8, 0, 2, 6, 9));
}

// numpy: RandomState(5); random_interval draws 64 bits from 2^32 on, the high word first.
TEST(NumpyRandom, DrawsNoNumberForOnePlaceAndTwoForManyPlaces) {
  std::mt19937 words(5);
  NumpyRandom random(5);
  EXPECT_EQ(random.bounded(0), 0U);
  const std::uint64_t high = words();
  const std::uint64_t low = words();
  EXPECT_EQ(random.bounded(~std::uint64_t{0}), high << 32 | low);
  EXPECT_EQ(random.bounded(0xffffffff), words());
}

TEST(GptIndices, MakeSamplesOfOneEpoch) {
  const GptPlan plan = plan_for(5);
  EXPECT_EQ(plan.epochs, 1);
  EXPECT_EQ(plan.samples, 6);
  const GptIndices indices = indices_of(plan);
  EXPECT_THAT(indices.document, ElementsAre(4, 0, 1, 2, 3));
  EXPECT_THAT(indices.sample, ElementsAreArray(Places{0, 0, 0, 4, 1, 2, 2, 1, 3, 2, 3, 6, 4, 3}));
  EXPECT_THAT(indices.shuffle, ElementsAre(5, 2, 3, 1, 0, 4));
}

TEST(GptIndices, ShuffleALastEpochThatIsHardlyUsedApart) {
  const GptPlan plan = plan_for(7);
  EXPECT_EQ(plan.epochs, 2);
  EXPECT_EQ(plan.before_last_epoch, 6);  // (25 - 1) / 4; one sample of the last epoch's six is asked for
  const GptIndices indices = indices_of(plan);
  EXPECT_THAT(indices.document, ElementsAre(4, 0, 1, 2, 3, 3, 2, 1, 0, 4));
  EXPECT_THAT(indices.sample,
              ElementsAreArray(Places{0, 0, 0, 4, 1, 2, 2, 1, 3, 2, 3, 6, 4, 3, 5, 3, 6, 3, 7, 0, 8, 1, 9, 0, 9, 4}));
  EXPECT_THAT(indices.shuffle, ElementsAre(0, 4, 3, 2, 5, 1, 7, 6, 9, 8, 11, 10));
}

TEST(GptIndices, ShuffleALastEpochThatIsNearlyUsedUpWithTheOthers) {
  const GptPlan plan = plan_for(12);
  EXPECT_EQ(plan.epochs, 2);
  EXPECT_FALSE(plan.before_last_epoch);
  const GptIndices indices = indices_of(plan);
  EXPECT_THAT(indices.document, ElementsAre(2, 2, 4, 1, 0, 3, 4, 0, 1, 3));
  EXPECT_THAT(indices.sample,
              ElementsAreArray(Places{0, 0, 0, 4, 1, 1, 1, 5, 2, 2, 3, 0, 4, 1, 5, 0, 6, 0, 6, 4, 7, 2, 8, 1, 9, 2}));
  EXPECT_THAT(indices.shuffle, ElementsAre(3, 11, 2, 1, 7, 5, 4, 0, 8, 6, 10, 9));
}

TEST(GptPlan, MakesAsManyEpochsAsAreAskedFor) {
  EXPECT_EQ(plan_for({}).samples, 6);
  EXPECT_EQ(plan_for(0).epochs, 1);
  EXPECT_EQ(plan_for(6).epochs, 1);  // 6 * 4 + 1 tokens are there
  EXPECT_EQ(plan_for(7).epochs, 2);
  // Of two epochs' 49 targets 12 samples are whole; one more is begun.
  EXPECT_EQ(plan_for(12).samples, 12);
  EXPECT_EQ(plan_for(12, true).samples, 13);
  EXPECT_EQ(plan_samples({.tokens_per_epoch = 3, .samples = {}, .seq_length = 4})->samples, 0);
  EXPECT_EQ(plan_samples({.tokens_per_epoch = 0, .samples = 0, .seq_length = 4})->samples, 0);
}

TEST(GptPlan, RefusesWhatCannotBeDrawnOrCounted) {
  EXPECT_FALSE(plan_samples({.tokens_per_epoch = 0, .samples = 1, .seq_length = 4}));
  EXPECT_FALSE(plan_samples({.tokens_per_epoch = 1, .samples = 1LL << 40, .seq_length = 4}));
  EXPECT_FALSE(plan_samples({.tokens_per_epoch = 9, .samples = 1LL << 62, .seq_length = 4}));
}

// --- Blends

TEST(Blend, DrawsFromTheSetThatIsFurthestBehind) {
  const std::vector<double> weights{.5, .3, .2};
  const BlendIndex index = blend_by_weight(weights, 10);
  EXPECT_THAT(index.dataset, ElementsAre(0, 1, 2, 0, 1, 0, 2, 0, 1, 0));
  EXPECT_THAT(index.sample, ElementsAre(0, 0, 0, 1, 1, 2, 1, 3, 2, 4));
  EXPECT_THAT(blend_by_weight(weights, 0).dataset, IsEmpty());
}

TEST(Blend, TakesEverySampleOnce) {
  const std::vector<std::int64_t> sizes{57, 0, 312};
  const BlendIndex index = blend_all(sizes);
  EXPECT_EQ(index.dataset.size(), 369U);
  std::vector<std::int64_t> taken(3);
  for (std::size_t i = 0; i < index.dataset.size(); ++i) {
    EXPECT_EQ(index.sample[i], taken[static_cast<std::size_t>(index.dataset[i])]++);
  }
  EXPECT_EQ(taken, sizes);
  // A product and a difference rounded each: rounded once, sample 123 would come from the other set.
  EXPECT_EQ(index.dataset[123], 0);
}

// numpy adds from eight values on in eight sums side by side: 0.1 nine times is 0.9 there and less one after another.
TEST(Blend, NormalizesAsNumpyDoes) {
  const std::vector<double> nine(9, 0.1);
  EXPECT_EQ(normalized(nine).front(), 0.1 / 0.9);
  EXPECT_EQ(normalized(std::vector<double>{3, 1, 2})[1], 0.16666666666666666);
}

}  // namespace
}  // namespace loom::data
