// Promise: every tensor an operator keeps for backward goes through the innermost hooks, once each way; overwriting one
//          is an error.
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "tests/tensor/tensors.h"

namespace loom {
namespace {

using autograd::backward;
using autograd::SavedTensorHooks;
using autograd::SavedTensorHooksScope;
using test::constant;
using test::grad;
using test::leaf;
using test::sum;
using ::testing::ElementsAre;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

struct Counts {
  int packed = 0;
  int unpacked = 0;

  SavedTensorHooks hooks() {
    return {[this](const Tensor& t) -> std::any {
              ++packed;
              EXPECT_FALSE(t.requires_grad());
              return t;
            },
            [this](const std::any& held) {
              ++unpacked;
              return std::any_cast<Tensor>(held);
            }};
  }
};

TEST(SavedTensorHooks, SeeEveryTensorThatIsSavedOnce) {
  test::OneRank rank;
  const Tensor a = leaf({2, 3}), b = leaf({5, 7});
  Counts counts;
  Tensor loss;
  {
    const SavedTensorHooksScope scope(counts.hooks());
    loss = sum(ops::mul(a, b));  // mul keeps both factors, the sum keeps nothing
  }
  EXPECT_EQ(counts.packed, 2);
  EXPECT_EQ(counts.unpacked, 0);
  backward(loss);
  EXPECT_EQ(counts.unpacked, 2);
  EXPECT_THAT(grad(a), ElementsAre(5, 7));
}

TEST(SavedTensorHooks, MayKeepSomethingElseAndBringTheValuesBack) {
  test::OneRank rank;
  const Tensor x = leaf({1, 2});
  const SavedTensorHooks to_host{
      [](const Tensor& t) -> std::any { return t.to_vector<double>(); },
      [](const std::any& held) { return constant(std::any_cast<std::vector<double>>(held)); }};
  Tensor loss;
  {
    const SavedTensorHooksScope scope(to_host);
    const Tensor y = ops::scale(x, 3);
    loss = sum(ops::mul(y, y));
  }
  EXPECT_EQ(rank.bytes(), 2 * 512);  // x and the loss: what mul keeps is on the host
  backward(loss);
  EXPECT_THAT(grad(x), ElementsAre(18, 36));  // 9 x^2
}

TEST(SavedTensorHooks, TheInnermostPairActs) {
  test::OneRank rank;
  const Tensor x = leaf({1, 2});
  Counts outer, inner;
  const SavedTensorHooksScope outer_scope(outer.hooks());
  const Tensor before = ops::silu(x);
  {
    const SavedTensorHooksScope inner_scope(inner.hooks());
    ops::silu(before);
  }
  ops::silu(before);
  EXPECT_EQ(outer.packed, 2);
  EXPECT_EQ(inner.packed, 1);
}

TEST(SavedTensorHooks, SeeNothingThatIsNotRecorded) {
  test::OneRank rank;
  Counts counts;
  const SavedTensorHooksScope scope(counts.hooks());
  ops::silu(constant({1}));
  const autograd::NoGrad no_grad;
  ops::silu(leaf({1}));
  EXPECT_EQ(counts.packed, 0);
}

TEST(SavedTensors, AProductKeepsOnlyWhatAGradientNeeds) {  // as PyTorch: a factor is kept for the other one's gradient
  test::OneRank rank;
  Counts counts;
  const SavedTensorHooksScope scope(counts.hooks());
  ops::mul(leaf({1}), constant({2}));
  EXPECT_EQ(counts.packed, 1);
  ops::linear(constant({1, 2}, {1, 2}), leaf({3, 4}, {1, 2}));
  EXPECT_EQ(counts.packed, 2);
  ops::linear(leaf({1, 2}, {1, 2}), constant({3, 4}, {1, 2}));
  EXPECT_EQ(counts.packed, 3);
}

TEST(SavedTensors, OverwritingOneIsAnErrorThatNamesIt) {
  test::OneRank rank;
  const Tensor w =
      Tensor::zeros({2}, DType::kF64, device::MemCategory::kParameter, "layers.0.weight").set_requires_grad(true);
  const Tensor loss = sum(ops::mul(w, w));
  w.fill(1);
  EXPECT_THAT([&] { backward(loss); },
              ThrowsMessage<ModelError>(StrEq("[rank 0] 'layers.0.weight' was saved for backward at version 1 and is "
                                              "at version 2: it was written to in between; write to a copy")));
}

TEST(SavedTensors, OfAReleasedStorageAreReadWhenItIsBack) {
  test::OneRank rank;
  const Tensor w = leaf({3, 4});
  const Tensor x = leaf({1, 1});
  const Tensor loss = sum(ops::mul(x, w));
  w.storage()->release();
  w.storage()->allocate();
  w.data<double>()[0] = 30;  // a gather restores values and leaves the version alone
  w.data<double>()[1] = 40;
  backward(loss);
  EXPECT_THAT(grad(x), ElementsAre(30, 40));
}

TEST(SavedTensors, OfAFailedBackwardAreGone) {
  test::OneRank rank;
  const Tensor x = leaf({1});
  const Tensor y = ops::mul(x, x);
  const Tensor loss = sum(y);
  int calls = 0;
  autograd::record("fails", {y}, {y}, {loss},
                   [&](autograd::Saved, const autograd::Grads&, const autograd::Needs&) -> autograd::Grads {
                     ++calls;
                     raise<InvariantError>("it failed");
                   });
  EXPECT_THAT([&] { backward(loss); }, ThrowsMessage<InvariantError>(StrEq("[rank 0] it failed")));
  EXPECT_THAT(
      [&] { backward(loss); },
      ThrowsMessage<ModelError>(StrEq("[rank 0] a second backward through 'fails': its saved tensors are freed after "
                                      "the first; run the forward again, or add the losses and run one backward")));
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(autograd::in_backward());
}

}  // namespace
}  // namespace loom
