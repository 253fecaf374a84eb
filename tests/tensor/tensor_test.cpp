// Promise: a tensor is a shape and a place in a storage; views share bytes and no graph.
#include "engine/tensor/tensor.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "tests/tensor/tensors.h"

namespace loom {
namespace {

using test::constant;
using test::leaf;
using test::values;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

TEST(Tensor, DetachSharesBytesAndNoGraph) {
  test::OneRank rank;
  const Tensor x = leaf({1, 2});
  const Tensor y = ops::scale(x, 2);
  const Tensor detached = y.detach();
  EXPECT_EQ(detached.raw(), y.raw());
  EXPECT_TRUE(y.requires_grad());
  EXPECT_FALSE(detached.requires_grad());
  EXPECT_FALSE(detached.is_same(y));
}

TEST(Tensor, ViewsAndRowsShareBytes) {
  test::OneRank rank;
  const Tensor x = constant({0, 1, 2, 3, 4, 5}, {3, 2});
  EXPECT_THAT(values(x.view({2, 3})), ElementsAre(0, 1, 2, 3, 4, 5));
  const Tensor rows = x.rows(1, 2);
  EXPECT_EQ(rows.shape(), (Shape{2, 2}));
  rows.fill(7);
  EXPECT_THAT(values(x), ElementsAre(0, 1, 7, 7, 7, 7));
  EXPECT_EQ(x.rows(3, 0).numel(), 0);
}

TEST(Tensor, ViewsThatDoNotFitAreErrors) {
  test::OneRank rank;
  const Tensor x = constant({0, 1, 2, 3, 4, 5}, {3, 2});
  EXPECT_THAT([&] { x.view({4}); },
              ThrowsMessage<ModelError>(StrEq("[rank 0] a [3, 2] tensor viewed as [4]; 6 elements are not 4")));
  EXPECT_THAT(
      [&] { x.rows(2, 2); },
      ThrowsMessage<ModelError>(StrEq("[rank 0] rows [2, 4) of a [3, 2] tensor; they need to lie within dim 0")));
  EXPECT_THAT(
      [&] {
        Tensor(x.storage(), 2, {3, 2}, DType::kF64);
      },
      ThrowsMessage<InvariantError>(
          StrEq("[rank 0] internal: a [3, 2] tensor at element 2 does not fit 'tensor' of 48 bytes")));
}

TEST(Tensor, ReadingWithTheWrongTypeIsAnError) {
  test::OneRank rank;
  const Tensor x = Tensor::zeros({1}, DType::kBF16, device::MemCategory::kParameter, "weight");
  EXPECT_THAT([&] { x.data<float>(); },
              ThrowsMessage<ModelError>(
                  StrEq("[rank 0] 'weight' is bf16, read as fp32; read it with its own dtype, or cast it")));
  EXPECT_THAT(
      [&] {
        constant({1, 2}).item();
      },
      ThrowsMessage<ModelError>(StrEq("[rank 0] item() of a tensor with 2 elements; to_vector() gives them all")));
  EXPECT_THAT([] { Tensor().shape(); },
              ThrowsMessage<ModelError>(StrEq("[rank 0] an undefined tensor was used; give it a value first")));
}

TEST(Tensor, FillsEveryElementOfAnyDtype) {
  test::OneRank rank;
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI8, DType::kI64}) {
    for (std::int64_t count : {0, 1, 3, 1000}) {
      const Tensor x = Tensor::full({count}, dtype, 3);
      EXPECT_THAT(values(x), Each(3.0)) << name(dtype) << " x " << count;
    }
  }
}

TEST(Tensor, CopiesConvertBetweenDtypes) {
  test::OneRank rank;
  const Tensor half = Tensor::empty({2}, DType::kBF16);
  half.copy_from(constant({1.00390625, -2}));  // 1 + 2^-8 is half way between bf16's 1 and 1 + 2^-7: ties to even
  EXPECT_THAT(values(half), ElementsAre(1, -2));
}

TEST(Tensor, OwnershipCountsHandlesAndOtherViews) {
  test::OneRank rank;
  Tensor x = constant({1, 2});
  EXPECT_TRUE(x.is_owned_by(1));
  const Tensor handle = x;
  EXPECT_FALSE(x.is_owned_by(1));
  EXPECT_TRUE(x.is_owned_by(2));
  Tensor view = x.detach();
  EXPECT_FALSE(x.is_owned_by(2));
  view = {};
  EXPECT_TRUE(x.is_owned_by(2));
}

TEST(Tensor, OnlyFloatingLeavesRequireGradients) {
  test::OneRank rank;
  EXPECT_THAT([] { test::ids({1}).set_requires_grad(true); },
              ThrowsMessage<ModelError>(
                  StrEq("[rank 0] a tensor of int64 cannot require a gradient; only floating dtypes can")));
  const Tensor y = ops::scale(leaf({1}), 2);
  EXPECT_THAT(
      [&] { y.set_requires_grad(false); },
      ThrowsMessage<ModelError>(StrEq(
          "[rank 0] requires_grad is set on the result of an operator; set it on leaves, or detach() the result")));
  EXPECT_THAT(
      [] { constant({1}).register_hook([](const Tensor&) { return Tensor{}; }); },
      ThrowsMessage<ModelError>(StrEq("[rank 0] a hook on a tensor that requires no gradient; it would never run")));
}

}  // namespace
}  // namespace loom
