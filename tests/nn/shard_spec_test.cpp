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

// q, k and v of 4 columns each in one matrix of 12; two ranks. Rank 1's columns of the whole are 2, 3; 6, 7; 10, 11.
class JoinedMatrices : public ::testing::Test {
 protected:
  static constexpr std::int64_t kRows = 2, kColumns = 12;
  static LocalTensor whole() {
    std::vector<float> values(kRows * kColumns);
    std::iota(values.begin(), values.end(), 0.0f);
    return {Tensor::from(values, {kRows, kColumns}), ShardSpec::whole({kRows, kColumns})};
  }
  // Columns [begin, begin + count) of the ranks' order.
  static LocalTensor part(std::int64_t begin, std::int64_t count) {
    return {Tensor::zeros({kRows, count}, DType::kF32),
            {{kRows, kColumns}, {0, begin}, ShardSpec::Joined{.dim = 1, .matrices = 3, .ranks = 2}}};
  }

  test::OneRank rank;
};

TEST_F(JoinedMatrices, ARankHasItsPartOfEach) {
  const LocalTensor own = part(6, 6);
  copy_box(own, whole(), "c_attn");
  EXPECT_THAT(own.value.to_vector<float>(), ElementsAre(2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23));
  std::vector<std::int64_t> begins;
  for (const FileBox& box : file_boxes(own.shard, own.value.shape())) {
    EXPECT_EQ(box.shape, (Shape{kRows, 2}));
    begins.push_back(box.offset[1]);
  }
  EXPECT_THAT(begins, ElementsAre(2, 6, 10));
}

TEST_F(JoinedMatrices, PartsThatAreCutOnceMoreMakeTheWhole) {
  const LocalTensor all{Tensor::zeros({kRows, kColumns}, DType::kF32), ShardSpec::whole({kRows, kColumns})};
  for (const auto& [begin, count] : {std::pair{0, 5}, {5, 1}, {6, 4}, {10, 2}}) {
    const LocalTensor own = part(begin, count);
    copy_box(own, whole(), "c_attn");
    paste_box(all, own, "c_attn");
  }
  EXPECT_EQ(all.value.to_vector<float>(), whole().value.to_vector<float>());
}

TEST_F(JoinedMatrices, BoxesOfBothOrdersDoNotMix) {
  const LocalTensor own = part(0, 6);
  EXPECT_FALSE(own.is_whole());
  EXPECT_FALSE(contains(own.shard, own.value.shape(), whole().shard, {kRows, 6}));
}

}  // namespace
}  // namespace loom::nn
