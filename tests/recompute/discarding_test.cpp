// Promise: the output of a discarding function is not held between forward and backward, comes back before the
//          consumer's backward, and changes no bit; readers outside the consumer keep it.
// World:   one rank; y = consumer(function(x)) on 256 floats: every tensor is 1024 bytes. The function is tanh, whose
//          own backward reads its output; the consumer multiplies it by a weight, for which it saves it.
#include "recompute/discarding.h"

#include <gmock/gmock.h>

#include "engine/core/rng_state.h"
#include "engine/tensor/ops/general.h"
#include "tests/recompute/toys.h"
#include "tests/support/files.h"

namespace loom {
namespace {

using recompute::run_discarding;
using test::Floats;
using test::Kind;
using test::message_of;

constexpr std::int64_t kElems = 256;
constexpr std::int64_t kTensorBytes = 1024;

nn::Args args_of(const Tensor& x) { return {{x}, {}}; }

Tensor weight_of(double value = 0.5) {
  const Tensor weight = Tensor::full({kElems}, DType::kF32, value);
  weight.set_requires_grad(true);
  return weight;
}

std::int64_t activation_bytes(const test::OneRank& rank) {
  return rank.stats().by_category[device::MemCategory::kActivation];
}

// consumer(function(x)), discarding or not.
struct Way {
  bool discard = false;
  Tensor operator()(const nn::Module::Run& function, const Tensor& x,
                    const std::function<nn::Value(const Tensor&)>& consumer) const {
    if (discard) return run_discarding("toy", function, args_of(x), consumer);
    const Tensor output = function(args_of(x));
    return consumer(output);
  }
};

nn::Value tanh_of(const nn::Args& args) { return ops::tanh(args.tensor(0)); }

TEST(DiscardedOutput, IsFreeBetweenForwardAndBackwardAndThereBeforeTheConsumersBackward) {
  for (const bool discard : {false, true}) {
    test::OneRank rank;
    const Tensor x = test::input(kElems), weight = weight_of();
    const std::int64_t before = activation_bytes(rank);
    int runs = 0;
    const Tensor y = Way{discard}(
        [&](const nn::Args& args) -> nn::Value {
          ++runs;
          return ops::tanh(args.tensor(0));
        },
        x, [&](const Tensor& output) -> nn::Value { return ops::mul(output, weight); });
    EXPECT_EQ(activation_bytes(rank) - before, (discard ? 1 : 2) * kTensorBytes);  // y, and tanh(x) where it is kept
    EXPECT_EQ(runs, 1);
    std::int64_t at_consumer = 0;
    y.register_hook([&](const Tensor&) {
      at_consumer = runs;
      return Tensor{};
    });
    autograd::backward(ops::mean(y));
    EXPECT_EQ(at_consumer, 1);  // nothing runs before a node asks
    EXPECT_EQ(runs, discard ? 2 : 1);
    EXPECT_EQ(activation_bytes(rank) - before, kTensorBytes);  // y: what came back is gone
  }
}

// Values, and the gradients of x and of the weight.
std::vector<Floats> values(bool discard, const nn::Module::Run& function,
                           const std::function<nn::Value(const Tensor&, const Tensor& weight)>& consumer) {
  test::OneRank rank;
  RngState::current() = {7, 0};
  const Tensor x = test::input(kElems), weight = weight_of();
  const Tensor y = Way{discard}(function, x, [&](const Tensor& output) { return consumer(output, weight); });
  const Tensor more = ops::dropout(y, 0.25, true);  // draws after the function
  autograd::backward(ops::mean(more));
  return {test::floats(y), test::floats(more), test::floats(x.grad()), test::floats(weight.grad())};
}

TEST(DiscardedOutput, ChangesNoBit) {
  const auto mul = [](const Tensor& output, const Tensor& weight) -> nn::Value { return ops::mul(output, weight); };
  EXPECT_EQ(values(true, tanh_of, mul), values(false, tanh_of, mul));
  // Dropout inside drops the same elements again.
  const nn::Module::Run drops = [](const nn::Args& args) -> nn::Value {
    return ops::dropout(ops::tanh(args.tensor(0)), 0.5, true);
  };
  EXPECT_EQ(values(true, drops, mul), values(false, drops, mul));
  EXPECT_NE(values(false, drops, mul), values(false, tanh_of, mul));
}

TEST(DiscardedOutput, MayBeReadThroughViewsByAnyNumberOfNodesOfTheConsumer) {
  const auto views = [](const Tensor& output, const Tensor& weight) -> nn::Value {
    const Tensor square = ops::reshape(output, {16, 16});
    const Tensor product = ops::reshape(ops::mul(square, square), {kElems});
    return ops::mul(ops::add(product, output), weight);
  };
  EXPECT_EQ(values(true, tanh_of, views), values(false, tanh_of, views));
}

TEST(DiscardedOutput, MayBeTheArgumentOfACheckpoint) {
  for (const Kind kind : {Kind::kReentrant, Kind::kRecorded}) {
    const auto inner = [&](bool discard) {
      test::OneRank rank;
      const auto block = test::twist(kElems);
      test::fill(*block);
      test::checkpoint(*block, kind);
      const Tensor x = test::input(kElems);
      const std::int64_t before = activation_bytes(rank);
      const Tensor y = Way{discard}(tanh_of, x, [&](const Tensor& output) { return (*block)(output); });
      EXPECT_EQ(activation_bytes(rank) - before, (discard ? 1 : 2) * kTensorBytes);
      autograd::backward(ops::mean(y));
      return std::vector<Floats>{test::floats(y), test::floats(x.grad()), test::floats(block->weight.value.grad())};
    };
    EXPECT_EQ(inner(true), inner(false)) << test::to_string(kind);
  }
}

TEST(DiscardedOutput, MayBeInsideACheckpoint) {
  const auto outer = [](bool discard, std::optional<Kind> kind) {
    test::OneRank rank;
    test::Fn block(kElems, [&](const nn::Args& args, const Tensor& weight) -> nn::Value {
      return Way{discard}(tanh_of, args.tensor(0),
                          [&](const Tensor& output) -> nn::Value { return ops::mul(output, weight); });
    });
    test::fill(block);
    if (kind) test::checkpoint(block, *kind);
    const Tensor x = test::input(kElems);
    const Tensor y = block(x);
    autograd::backward(ops::mean(y));
    return std::vector<Floats>{test::floats(y), test::floats(x.grad()), test::floats(block.weight.value.grad())};
  };
  for (const Kind kind : {Kind::kReentrant, Kind::kRecorded}) EXPECT_EQ(outer(true, kind), outer(false, std::nullopt));
}

TEST(DiscardedOutput, OfTwoForwardsBeforeOneBackwardAreApart) {
  const auto twice = [](bool discard) {
    test::OneRank rank;
    const Tensor x = test::input(kElems), weight = weight_of();
    const auto consumer = [&](const Tensor& output) -> nn::Value { return ops::mul(output, weight); };
    const Tensor first = Way{discard}(tanh_of, x, consumer), second = Way{discard}(tanh_of, first, consumer);
    autograd::backward(ops::mean(ops::add(first, second)));
    return std::vector<Floats>{test::floats(second), test::floats(x.grad()), test::floats(weight.grad())};
  };
  EXPECT_EQ(twice(true), twice(false));
}

TEST(DiscardedOutput, IsKeptByAReaderOutsideTheConsumer) {
  const auto leaked = [](bool discard) {
    test::OneRank rank;
    const Tensor x = test::input(kElems), weight = weight_of(), other = weight_of(0.25);
    const std::int64_t before = activation_bytes(rank);
    Tensor outside;
    {
      Tensor seen;
      const Tensor y = Way{discard}(tanh_of, x, [&](const Tensor& output) -> nn::Value {
        seen = output;
        return ops::mul(output, weight);
      });
      outside = ops::add(y, ops::mul(seen, other));
    }
    EXPECT_EQ(activation_bytes(rank) - before, 2 * kTensorBytes);  // the sum, and tanh(x) for `other`
    autograd::backward(ops::mean(outside));
    return std::vector<Floats>{test::floats(outside), test::floats(x.grad()), test::floats(weight.grad()),
                               test::floats(other.grad())};
  };
  EXPECT_EQ(leaked(true), leaked(false));
}

TEST(DiscardedOutput, OfAConsumerWithoutAGradientIsNotComputedAgain) {
  test::OneRank rank;
  const Tensor x = test::input(kElems, /*requires_grad=*/false), weight = weight_of();
  int runs = 0;
  const nn::Module::Run function = [&](const nn::Args& args) -> nn::Value {
    ++runs;
    return ops::tanh(args.tensor(0));
  };
  Tensor seen;
  const Tensor y = run_discarding("toy", function, args_of(x), [&](const Tensor& output) -> nn::Value {
    seen = output;
    return ops::scale(output, 2);
  });
  EXPECT_FALSE(y.requires_grad());
  autograd::backward(ops::mean(ops::mul(seen, weight)));  // which the consumer did not take away
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(test::floats(weight.grad())[0], test::floats(seen)[0] / kElems);
}

TEST(DiscardedOutput, WithTheGradModeOffIsAnOrdinaryOne) {
  test::OneRank rank;
  const autograd::NoGrad no_grad;
  const Tensor x = test::input(kElems), weight = weight_of();
  const Tensor y = run_discarding("toy", tanh_of, args_of(x),
                                  [&](const Tensor& output) -> nn::Value { return ops::mul(output, weight); });
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(test::floats(y), test::floats(ops::mul(ops::tanh(x), weight)));
}

TEST(DiscardedOutput, OfAnotherSizeTheSecondTimeIsRefused) {
  test::OneRank rank;
  const Tensor x = test::input(kElems, /*requires_grad=*/false), weight = weight_of();
  bool again = false;
  const nn::Module::Run function = [&](const nn::Args& args) -> nn::Value {
    return std::exchange(again, true) ? args.tensor(0).rows(0, kElems / 2) : args.tensor(0);
  };
  const Tensor loss = ops::mean(run_discarding("mlp.act", function, args_of(x), [&](const Tensor& output) -> nn::Value {
                                  return ops::mul(output, weight);
                                }).tensor());
  EXPECT_EQ(message_of<recompute::RecomputeError>([&] { autograd::backward(loss); }),
            "[rank 0] recompute of 'mlp.act': its output had at least 256 elements in fp32 in forward, and has 128 in "
            "fp32 when it runs again; it must do the same both times");
}

}  // namespace
}  // namespace loom
