// Promise: a box of a tensor is filled from any larger box of the same whole, converted, and from nothing else.
#include "engine/nn/shard_spec.h"

#include <gmock/gmock.h>
#include <numeric>

#include "engine/core/error.h"
#include "tests/support/boxes.h"
#include "tests/support/one_rank.h"

namespace loom::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

const Shape kWhole{3, 4, 5};

std::vector<float> numbers() {
  std::vector<float> values(60);
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

// The box of the numbers 0, 1, ... laid out as kWhole.
LocalTensor box(const Offset& offset, const Shape& shape, DType dtype = DType::kF32) {
  return {Tensor::from(test::box_of(numbers(), kWhole, offset, shape), shape, dtype), {kWhole, offset}};
}

LocalTensor empty_box(const Offset& offset, const Shape& shape, DType dtype = DType::kF32) {
  return {Tensor::zeros(shape, dtype), {kWhole, offset}};
}

TEST(CopyBox, TakesTheBoxFromTheWholeOrFromALargerBox) {
  test::OneRank rank;
  for (const LocalTensor& source : {box({0, 0, 0}, kWhole), box({1, 1, 0}, {2, 3, 5})}) {
    const LocalTensor target = empty_box({1, 2, 3}, {2, 2, 2});
    copy_box(target, source, "w");
    EXPECT_EQ(target.value.to_vector<float>(), test::box_of(numbers(), kWhole, {1, 2, 3}, {2, 2, 2}));
  }
}

TEST(CopyBox, ConvertsAndBumpsTheVersion) {
  test::OneRank rank;
  const LocalTensor target = empty_box({0, 3, 0}, {1, 1, 5}, DType::kBF16);
  const std::uint64_t version = target.value.storage()->version();
  copy_box(target, box({0, 0, 0}, kWhole), "w");
  EXPECT_THAT(target.value.to_vector<float>(), ElementsAre(15, 16, 17, 18, 19));
  EXPECT_GT(target.value.storage()->version(), version);
}

TEST(CopyBox, AnEmptyBoxIsInEveryBox) {
  test::OneRank rank;
  EXPECT_NO_THROW(copy_box(empty_box({3, 0, 0}, {0, 4, 5}), box({0, 0, 0}, {1, 4, 5}), "w"));
}

TEST(CopyBox, RefusesWhatTheSourceDoesNotHave) {
  test::OneRank rank;
  const LocalTensor source = box({1, 0, 0}, {2, 4, 5});
  EXPECT_THAT(
      [&] {
        copy_box(empty_box({0, 0, 0}, {2, 4, 5}), source, "w");
      },
      ThrowsMessage<InvariantError>(
          StrEq("[rank 0] internal: 'w': [2, 4, 5] at (0, 0, 0) of [3, 4, 5] is not in [2, 4, 5] at (1, 0, 0) of "
                "[3, 4, 5]")));
  LocalTensor other = empty_box({1, 0, 0}, {1, 4, 5});
  other.shard.global_shape = {4, 4, 5};
  EXPECT_THROW(copy_box(other, source, "w"), InvariantError);
}

}  // namespace
}  // namespace loom::nn
