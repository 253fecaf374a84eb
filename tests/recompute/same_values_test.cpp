// Promise: results and gradients are bit for bit those without recompute, in both kinds, whatever goes in and comes
//          out.
// World:   one rank; modules of a few elements. Every case runs plain, then with its modules checkpointed.
#include <gmock/gmock.h>

#include "engine/core/rng.h"
#include "engine/core/rng_state.h"
#include "tests/recompute/toys.h"

namespace loom {
namespace {

using test::Floats;
using test::Fn;
using test::Kind;

class SameValues : public ::testing::TestWithParam<Kind> {
 protected:
  // What `run` returns, plain and with recompute of what it passes to wrap().
  using Results = std::vector<Floats>;
  using Wrap = std::function<void(nn::Module&)>;
  void expect_same(const std::function<Results(const Wrap& wrap)>& run) const {
    const auto of_run = [&](const Wrap& wrap) {
      test::OneRank rank;
      return run(wrap);
    };
    const Results plain = of_run([](nn::Module&) {});
    for (const Floats& values : plain) EXPECT_FALSE(values.empty());
    EXPECT_EQ(of_run([](nn::Module& module) { test::checkpoint(module, GetParam()); }), plain);
  }
};

INSTANTIATE_TEST_SUITE_P(Kinds, SameValues, ::testing::Values(Kind::kReentrant, Kind::kRecorded),
                         [](const auto& info) { return test::to_string(info.param); });

TEST_P(SameValues, OfOneModule) {
  expect_same([](const Wrap& wrap) -> Results {
    const auto block = test::twist(4);
    test::fill(*block);
    wrap(*block);
    const Tensor x = test::input(4);
    const Tensor y = (*block)(x);
    const Tensor loss = ops::mean(y);
    autograd::backward(loss);
    return {test::floats(y), test::floats(x.grad()), test::floats(block->weight.value.grad())};
  });
}

TEST_P(SameValues, OfNamedArgumentsInNestedContainers) {
  expect_same([](const Wrap& wrap) -> Results {
    Fn block(2, [](const nn::Args& args, const Tensor& w) -> nn::Value {
      const Tensor& scale = args.find("options").dict()[1].second.list()[0].tensor();
      EXPECT_EQ(args.find("options").dict()[0].second.number(), 7);
      EXPECT_TRUE(args.find("nothing").is_none());
      return ops::mul(ops::mul(args.tensor(0), w), scale);
    });
    test::fill(block);
    wrap(block);
    const Tensor x = test::input(2, false), scale = test::input(2);  // only the nested one requires grad
    nn::Args args{{x}, {}};
    args.named.emplace_back("options", nn::ValueDict{{"count", 7}, {"scales", nn::ValueList{scale}}});
    args.named.emplace_back("nothing", nn::Value{});
    autograd::backward(ops::mean(block.call(args)));
    EXPECT_FALSE(x.grad().defined());
    return {test::floats(scale.grad()), test::floats(block.weight.value.grad())};
  });
}

TEST_P(SameValues, OfSeveralOutputsOfWhichOneIsNotUsed) {
  expect_same([](const Wrap& wrap) -> Results {
    Fn block(2, [](const nn::Args& args, const Tensor& w) -> nn::Value {
      const Tensor h = ops::tanh(ops::mul(args.tensor(0), w));
      return nn::ValueDict{{"list", nn::ValueList{ops::mul(h, w), ops::scale(h, 3)}},
                           {"unused", ops::scale(h, 5)},
                           {"ids", Tensor::from(std::vector<std::int32_t>{1, 2}, {2})}};
    });
    test::fill(block);
    wrap(block);
    const Tensor x = test::input(2);
    const nn::Value out = block(x);
    EXPECT_EQ(out.dict()[2].second.tensor().to_vector<std::int32_t>(), (std::vector<std::int32_t>{1, 2}));
    const auto& list = out.dict()[0].second.list();
    autograd::backward(ops::mean(ops::add(list[0], ops::mul(list[1], list[1]))));
    return {test::floats(x.grad()), test::floats(block.weight.value.grad())};
  });
}

TEST_P(SameValues, OfATensorThatIsGivenTwiceAndReturnedAsItIs) {
  expect_same([](const Wrap& wrap) -> Results {
    Fn block(2, [](const nn::Args& args, const Tensor& w) -> nn::Value {
      EXPECT_TRUE(args.tensor(0).is_same(args.tensor(1)));
      return nn::ValueList{args.tensor(0), ops::mul(ops::mul(args.tensor(0), args.tensor(1)), w)};
    });
    test::fill(block);
    wrap(block);
    const Tensor x = test::input(2);
    const nn::Value out = block(x, x);
    autograd::backward(ops::mean(ops::add(out.list()[1], ops::scale(out.list()[0], 3))));
    return {test::floats(x.grad()), test::floats(block.weight.value.grad())};
  });
}

TEST_P(SameValues, OfAModuleThatRunsTwice) {
  expect_same([](const Wrap& wrap) -> Results {
    const auto block = test::twist(3);
    test::fill(*block);
    wrap(*block);
    const Tensor x = test::input(3);
    autograd::backward(ops::mean((*block)((*block)(x))));
    return {test::floats(x.grad()), test::floats(block->weight.value.grad())};
  });
}

TEST_P(SameValues, OfModulesInsideOneAnother) {
  for (const Kind inner : {Kind::kReentrant, Kind::kRecorded}) {
    expect_same([inner](const Wrap& wrap) -> Results {
      const auto first = test::twist(3), second = test::twist(3);
      test::Chain chain({first, std::make_shared<test::Chain>(std::vector<std::shared_ptr<nn::Module>>{second})});
      test::fill(chain);
      wrap(chain);
      test::checkpoint(*chain.find("1"), inner, "1");
      test::checkpoint(*chain.find("1.0"), inner, "1.0");
      const Tensor x = test::input(3);
      autograd::backward(ops::mean(chain(x)));
      return {test::floats(x.grad()), test::floats(first->weight.value.grad()),
              test::floats(second->weight.value.grad())};
    });
  }
}

TEST_P(SameValues, OfRandomNumbersThatForwardDraws) {
  expect_same([](const Wrap& wrap) -> Results {
    RngState::current() = {.key = stream_key(1, "dropout"), .next = 100};
    Fn block(8, [](const nn::Args& args, const Tensor& w) -> nn::Value {
      Floats kept;
      const std::uint64_t first = RngState::current().take(8);
      for (std::uint64_t i = 0; i < 8; ++i)
        kept.push_back(uniform_at(RngState::current().key, first + i) < 0.5 ? 0 : 2);
      return ops::mul(ops::mul(args.tensor(0), w), Tensor::from(kept, {8}));
    });
    test::fill(block);
    wrap(block);
    const Tensor x = test::input(8);
    const Tensor y = block(block(x));  // each call draws its own numbers
    autograd::backward(ops::mean(y));
    EXPECT_EQ(RngState::current().next, 116u);  // what backward replays is not drawn
    return {test::floats(y), test::floats(x.grad()), test::floats(block.weight.value.grad())};
  });
}

TEST_P(SameValues, WithoutGradientsNothingIsKept) {
  test::OneRank rank;
  const auto block = test::twist(4);
  test::fill(*block);
  test::checkpoint(*block, GetParam());
  const autograd::NoGrad no_grad;
  const Tensor y = (*block)(test::input(4, false));
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(block->begun, 1);
}

}  // namespace
}  // namespace loom
