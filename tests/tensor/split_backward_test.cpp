// Promise: a backward in two parts gives the bits of one; the first part gives the inputs' gradients alone, hooks run
//          once, and what an operator saved is freed behind its last part.
#include "engine/tensor/split_backward.h"

#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "tests/tensor/tensors.h"

namespace loom {
namespace {

using autograd::backward_of_inputs;
using autograd::RestOfBackward;
using test::grad;
using test::leaf;
using test::sum;
using ::testing::ElementsAre;

TEST(SplitBackward, GivesTheInputsGradientFirst) {  // L = sum(w (x w + v)): dL/dx = w w, dL/dw = 2 x w + v, dL/dv = w
  test::OneRank rank;
  const Tensor x = leaf({2, 3}), w = leaf({5, 7}), v = leaf({1, -1});
  const Tensor loss = sum(ops::mul(w, ops::add(ops::mul(x, w), v)));
  const autograd::Root root{loss, {}};
  RestOfBackward rest = backward_of_inputs({&root, 1}, {&x, 1});
  EXPECT_THAT(grad(x), ElementsAre(25, 49));
  EXPECT_FALSE(w.grad().defined() || v.grad().defined());
  rest.run();
  EXPECT_THAT(grad(x), ElementsAre(25, 49));
  EXPECT_THAT(grad(w), ElementsAre(21, 41));
  EXPECT_THAT(grad(v), ElementsAre(5, 7));
}

TEST(SplitBackward, WithoutInputsIsAllInTheSecondPart) {
  test::OneRank rank;
  const Tensor w = leaf({5, 7});
  const autograd::Root root{sum(ops::mul(w, w)), {}};
  RestOfBackward rest = backward_of_inputs({&root, 1}, {});
  EXPECT_FALSE(w.grad().defined());
  rest.run();
  EXPECT_THAT(grad(w), ElementsAre(10, 14));
}

// A weight that is cast, as kernels cast it, leads to its leaf through an operator of its own.
TEST(SplitBackward, RunsWhatLeadsToParametersAloneInTheSecondPart) {
  test::OneRank rank;
  const Tensor x = leaf({2, 3}), w = leaf({5, 7});
  int hooks = 0;
  const Tensor doubled = ops::scale(w, 2);
  doubled.register_hook([&](const Tensor&) { return ++hooks, Tensor{}; });
  const Tensor product = ops::mul(x, doubled);
  product.register_hook([&](const Tensor&) { return hooks += 10, Tensor{}; });
  const autograd::Root root{sum(product), {}};
  RestOfBackward rest = backward_of_inputs({&root, 1}, {&x, 1});
  EXPECT_EQ(hooks, 10);
  EXPECT_THAT(grad(x), ElementsAre(10, 14));
  rest.run();
  EXPECT_EQ(hooks, 11);
  EXPECT_THAT(grad(w), ElementsAre(4, 6));
}

TEST(SplitBackward, FreesWhatWasSavedBehindTheSecondPart) {
  test::OneRank rank;
  const Tensor x = leaf({2, 3}), w = leaf({5, 7});
  device::DeviceMemory& memory = device::Device::current().memory();
  const auto bytes = [&] { return memory.stats().total_bytes; };
  const std::int64_t before = bytes();
  RestOfBackward rest;
  {
    const autograd::Root root{sum(ops::mul(ops::scale(x, 3), w)), {}};
    rest = backward_of_inputs({&root, 1}, {&x, 1});
  }
  const std::int64_t block = before / 2;  // what memory gives for x or w
  EXPECT_GT(bytes(), before + block);     // the gradient of x; the product's inputs and gradient
  rest.run();
  EXPECT_EQ(bytes(), before + 2 * block);
  EXPECT_THROW(rest.run(), InvariantError);
}

}  // namespace
}  // namespace loom
