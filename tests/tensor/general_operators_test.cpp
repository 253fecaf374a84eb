// Promise: the operators for models of one's own compute what PyTorch's of the same name do, and refuse what does not
//          fit.
#include <cmath>
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/core/rng_state.h"
#include "engine/tensor/ops/general.h"
#include "tests/tensor/tensors.h"

namespace loom {
namespace {

using test::constant;
using test::Doubles;
using test::values;
using ::testing::ElementsAre;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

void expect_refused(const std::function<void()>& call, const std::string& text) {
  EXPECT_THAT(call, ThrowsMessage<ModelError>(StrEq("[rank 0] " + text)));
}

class GeneralOperators : public ::testing::Test {
 protected:
  test::OneRank rank;
};

TEST_F(GeneralOperators, BroadcastAsPyTorch) {
  const Tensor column = constant({1, 2}, {2, 1}), row = constant({10, 20, 30});
  EXPECT_EQ((column + row).shape(), (Shape{2, 3}));
  EXPECT_THAT(values(column + row), ElementsAre(11, 21, 31, 12, 22, 32));
  EXPECT_THAT(values(row - column), ElementsAre(9, 19, 29, 8, 18, 28));
  EXPECT_THAT(values(column * row), ElementsAre(10, 20, 30, 20, 40, 60));
  EXPECT_THAT(values(row / column), ElementsAre(10, 20, 30, 5, 10, 15));
  EXPECT_THAT(values(constant({5}, {}) + row), ElementsAre(15, 25, 35)) << "a scalar";
  EXPECT_EQ((constant({}, {0, 1}) + row).shape(), (Shape{0, 3})) << "no elements";
}

TEST_F(GeneralOperators, TakeNumbersOnEitherSide) {
  const Tensor x = constant({1, 4});
  EXPECT_THAT(values(1.0 + x), ElementsAre(2, 5));
  EXPECT_THAT(values(x - 1.0), ElementsAre(0, 3));
  EXPECT_THAT(values(1.0 - x), ElementsAre(0, -3));
  EXPECT_THAT(values(-(x * 2.0) / 4.0), ElementsAre(-0.5, -2));
}

TEST_F(GeneralOperators, RoundOnceToTheirDtype) {
  const Tensor a = constant({1, 256}, {2, 1}, DType::kBF16), b = constant({0.00390625, 1}, {1, 2}, DType::kBF16);
  EXPECT_THAT(values(a + b), ElementsAre(1, 2, 256, 256)) << "1.0039 and 257 are no bf16; ties go to even";
  EXPECT_EQ((a + b).dtype(), DType::kBF16);
}

TEST_F(GeneralOperators, SumAndAverageOverADim) {
  const Tensor x = constant({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_THAT(values(ops::sum(x, 0)), ElementsAre(5, 7, 9));
  EXPECT_THAT(values(ops::sum(x, -1)), ElementsAre(6, 15));
  EXPECT_EQ(ops::mean(x, 1, true).shape(), (Shape{2, 1}));
  EXPECT_THAT(values(ops::mean(x, 1)), ElementsAre(2, 5));
  EXPECT_EQ(ops::sum(x).item(), 21);
}

TEST_F(GeneralOperators, SumsOf16BitNumbersAreKeptInFp32) {
  EXPECT_EQ(values(ops::sum(constant(Doubles(1000, 1), {1000}, DType::kBF16), 0))[0], 1000);
}

TEST_F(GeneralOperators, JoinCutAndSwapDims) {
  const Tensor x = constant({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_THAT(values(ops::transpose(x, 0, 1)), ElementsAre(1, 4, 2, 5, 3, 6));
  EXPECT_THAT(values(ops::concat({x, x}, 1)), ElementsAre(1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6));
  const auto parts = ops::split(x, {2, 1}, -1);
  EXPECT_THAT(values(parts[0]), ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(values(parts[1]), ElementsAre(3, 6));
  const Tensor cube = constant({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, {2, 3, 2});
  EXPECT_THAT(values(ops::transpose(cube, 0, 2)), ElementsAre(0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11));
  EXPECT_EQ(values(ops::transpose(ops::transpose(cube, 0, 1), 0, 1)), values(cube));
}

TEST_F(GeneralOperators, DropoutKeepsItsShareAndDrawsTheSameOnReplay) {
  RngState::current() = {.key = stream_key(3, "dropout"), .next = 0};
  const Tensor x = constant(Doubles(10000, 3), {10000});
  const RngState before = RngState::current();
  const Doubles first = values(ops::dropout(x, 0.25));
  const Doubles second = values(ops::dropout(x, 0.25));
  EXPECT_NE(first, second);
  EXPECT_NEAR(static_cast<double>(std::count(first.begin(), first.end(), 4.0)), 7500, 150);
  EXPECT_EQ(std::count(first.begin(), first.end(), 4.0) + std::count(first.begin(), first.end(), 0.0), 10000);
  const RngReplay replay(before);
  EXPECT_EQ(values(ops::dropout(x, 0.25)), first);
  EXPECT_TRUE(ops::dropout(x, 0.25, false).is_same(x)) << "no training";
  EXPECT_TRUE(ops::dropout(x, 0).is_same(x));
}

Tensor bools(const std::vector<int>& bits, const Shape& shape) {
  std::vector<std::uint8_t> bytes(bits.begin(), bits.end());
  const Tensor mask = Tensor::empty(shape, DType::kBool);
  std::copy(bytes.begin(), bytes.end(), static_cast<std::uint8_t*>(mask.raw()));
  return mask;
}

TEST_F(GeneralOperators, AttentionWithACausalMaskIsCausalAttention) {
  const Tensor q = constant(test::normals(2 * 3 * 4 * 2, 1), {2, 3, 4, 2});
  const Tensor k = constant(test::normals(2 * 3 * 2 * 2, 2), {2, 3, 2, 2});
  const Tensor v = constant(test::normals(2 * 3 * 2 * 2, 3), {2, 3, 2, 2});
  const Doubles expected = values(ops::attention(q, k, v, 0.5));
  const Doubles actual = values(ops::masked_attention(q, k, v, bools({1, 0, 0, 1, 1, 0, 1, 1, 1}, {3, 3}), 0.5));
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-12) << i;
}

TEST_F(GeneralOperators, AQueryThatSeesNoKeyGetsTheMeanOfAllValues) {
  const Tensor q = constant({1, 2}, {1, 1, 1, 2}), k = constant({1, 2, 3, 4}, {1, 2, 1, 2});
  const Tensor v = constant({1, 2, 3, 6}, {1, 2, 1, 2});
  EXPECT_THAT(values(ops::masked_attention(q, k, v, bools({0, 0}, {1, 1, 1, 2}), 1)), ElementsAre(2, 4));
}

TEST_F(GeneralOperators, BagsOfEmbeddings) {
  const Tensor table = constant({1, 2, 10, 20, 100, 200}, {3, 2});
  const Tensor ids = test::ids({0, 2, 1});
  EXPECT_THAT(values(ops::embedding_bag(ids, {0, 2, 2}, table, ops::BagMode::kSum)),
              ElementsAre(101, 202, 0, 0, 10, 20));
  EXPECT_THAT(values(ops::embedding_bag(ids, {0}, table, ops::BagMode::kMean)), ElementsAre(37, 74));
}

TEST_F(GeneralOperators, RefuseWhatDoesNotFit) {
  const Tensor x = Tensor::zeros({2, 3}, DType::kF32);
  expect_refused([&] { ops::sub(x, Tensor::zeros({2}, DType::kF32)); },
                 "sub: fp32 [2, 3] with fp32 [2]; aligned at the last dim, sizes need to be equal or 1, in the same "
                 "dtype");
  expect_refused(
      [&] {
        ops::div(x, Tensor::zeros({2, 3}, DType::kBF16));
      },
      "div: fp32 [2, 3] with bf16 [2, 3]; aligned at the last dim, sizes need to be equal or 1, in the same "
      "dtype");
  expect_refused([&] { ops::sum(x, 2); }, "sum: dim 2 of [2, 3]; it has 2 dims");
  expect_refused([&] { ops::transpose(x, 0, -3); }, "transpose: dim -3 of [2, 3]; it has 2 dims");
  expect_refused(
      [&] {
        ops::mean(Tensor::zeros({2, 0}, DType::kF32), 1);
      },
      "mean: dim 1 of [2, 0] is empty; a mean needs one element");
  expect_refused([] { ops::concat({}, 0); }, "concat: no tensor is given; give one or more");
  expect_refused(
      [&] {
        ops::concat({x, Tensor::zeros({3, 3}, DType::kF32)}, 1);
      },
      "concat: fp32 [2, 3] with fp32 [3, 3] along dim 1; all other dims and the dtype need to be the same");
  expect_refused(
      [&] {
        ops::split(x, {1, 1}, 1);
      },
      "split: parts of 2 elements from dim 1 of [2, 3]; the parts need the dim as their sum");
  expect_refused([&] { ops::dropout(x, 1); }, "dropout: p is 1; it needs to be at least 0 and below 1");
  const Tensor q = Tensor::zeros({1, 2, 1, 4}, DType::kF32);
  expect_refused(
      [&] {
        ops::masked_attention(q, q, q, Tensor::zeros({3, 2}, DType::kF32), 1);
      },
      "masked_attention: mask fp32 [3, 2] for scores fp32 [1, 1, 2, 2]; it needs to broadcast to [batch, "
      "heads, queries, keys], as bool or in the dtype of q");
  expect_refused(
      [&] {
        ops::embedding_bag(test::ids({1, 0}), {0, 3}, x, ops::BagMode::kSum);
      },
      "embedding_bag: 2 bags over ids [2]; ids are one row, offsets ascend from 0 to at most their number");
}

}  // namespace
}  // namespace loom
