// Promise: value_and_grad() and grad() return what MindSpore's table says, with the bits of backward(), and leave every
//          accumulated gradient as it was.
// World:   one rank, fp64 but where said; f(x, y) = sum(x * x * y), so df/dx = 2 x y and df/dy = x x.
#include "engine/nn/functional_grad.h"

#include <gmock/gmock.h>
#include <thread>

#include "engine/core/error.h"
#include "engine/nn/init.h"
#include "engine/tensor/ops/general.h"
#include "tests/nn/toy_modules.h"
#include "tests/support/files.h"

namespace loom {
namespace {

using nn::GradSpec;
using test::constant;
using test::Doubles;
using test::leaf;
using test::message_of;
using test::values;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Tensor f(const Tensor& x, const Tensor& y) { return ops::sum(x * x * y); }

class FunctionalGrad : public ::testing::Test {
 protected:
  test::OneRank rank_;
  const Tensor x_ = constant({1, 2}), y_ = constant({3, 5});
};

// --- the rows of the table

TEST_F(FunctionalGrad, OfOnePositionIsOneTensor) {
  const nn::ValueAndGrad result = nn::value_and_grad(f, {.positions = 1})(x_, y_);
  EXPECT_EQ(result.value.tensor().item(), 1 * 3 + 4 * 5);
  EXPECT_THAT(values(result.gradients.tensor()), ElementsAre(1, 4));
  EXPECT_THAT(values(nn::grad(f)(x_, y_).gradients.tensor()), ElementsAre(6, 20));  // position 0 by default
}

TEST_F(FunctionalGrad, OfATupleOfPositionsIsATupleInItsOrder) {
  const nn::Gradients gradients = nn::grad(f, {.positions = {1, 0}})(x_, y_).gradients;
  ASSERT_EQ(gradients.tuple().size(), 2U);
  EXPECT_THAT(values(gradients.tuple()[0]), ElementsAre(1, 4));
  EXPECT_THAT(values(gradients.tuple()[1]), ElementsAre(6, 20));
  EXPECT_EQ(nn::grad(f, {.positions = {1}})(x_, y_).gradients.tuple().size(), 1U);
  EXPECT_EQ(message_of<ModelError>([&] { gradients.tensor(); }),
            "[rank 0] the gradients are a tuple of 2, one tensor was read; read tuple()");
}

TEST_F(FunctionalGrad, OfWeightsAloneIsAsTheyAreGiven) {
  const Tensor w = leaf({7, 1}), v = leaf({2, 2});
  const auto weighted = [&](const Tensor& x) { return f(x, w) + ops::sum(v); };
  EXPECT_THAT(values(nn::grad(weighted, {.positions = std::nullopt, .weights = w})(x_).gradients.tensor()),
              ElementsAre(1, 4));
  const GradSpec list{.positions = std::nullopt, .weights = std::vector<Tensor>{v, w}};
  const std::vector<Tensor> tuple = nn::grad(weighted, list)(x_).gradients.tuple();
  EXPECT_THAT(values(tuple.at(0)), ElementsAre(1, 1));
  EXPECT_THAT(values(tuple.at(1)), ElementsAre(1, 4));
}

TEST_F(FunctionalGrad, OfPositionsAndWeightsIsAPair) {
  const Tensor w = leaf({7, 1});
  const auto weighted = [&](const Tensor& x, const Tensor& y) { return f(x, w) + ops::sum(y); };
  const nn::Gradients one = nn::grad(weighted, {.positions = 0, .weights = std::vector<Tensor>{w}})(x_, y_).gradients;
  EXPECT_THAT(values(one.inputs().tensor()), ElementsAre(14, 4));
  EXPECT_THAT(values(one.weights().tuple().at(0)), ElementsAre(1, 4));
  const nn::Gradients two = nn::grad(weighted, {.positions = {0, 1}, .weights = w})(x_, y_).gradients;
  EXPECT_THAT(values(two.inputs().tuple().at(1)), ElementsAre(1, 1));
  EXPECT_THAT(values(two.weights().tensor()), ElementsAre(1, 4));
  EXPECT_THAT(message_of<ModelError>([&] { two.tensor(); }), HasSubstr("a pair, of 2 inputs and 1 weights"));
}

TEST_F(FunctionalGrad, OfNeitherIsRefused) {
  EXPECT_EQ(message_of<ConfigError>([] { nn::grad(f, {.positions = std::nullopt}); }),
            "value_and_grad: neither positions nor weights are given, one of them is needed; give positions of inputs, "
            "or parameters");
}

// --- outputs

TEST_F(FunctionalGrad, OfSeveralOutputsIsThatOfTheirSum) {
  const auto two = [](const Tensor& x, const Tensor& y) { return std::vector<Tensor>{f(x, y), ops::sum(x)}; };
  const nn::ValueAndGrad result = nn::value_and_grad(two)(x_, y_);
  EXPECT_THAT(values(result.gradients.tensor()), ElementsAre(7, 21));
  EXPECT_EQ(result.value.list().size(), 2U);
  EXPECT_FALSE(result.value.list()[1].tensor().requires_grad());
  const auto same = [](const Tensor& x, const Tensor& y) {
    const Tensor z = f(x, y);
    return nn::ValueDict{{"a", z}, {"b", z}};
  };
  EXPECT_THAT(values(nn::grad(same)(x_, y_).gradients.tensor()), ElementsAre(12, 40));
}

TEST_F(FunctionalGrad, WithAuxIsThatOfTheFirstOutput) {
  const auto two = [](const Tensor& x, const Tensor& y) { return nn::ValueList{f(x, y), ops::sum(x), "text"}; };
  const nn::GradAndAux result = nn::grad(two, {.has_aux = true})(x_, y_);
  EXPECT_THAT(values(result.gradients.tensor()), ElementsAre(6, 20));
  ASSERT_EQ(result.aux.size(), 2U);
  EXPECT_EQ(result.aux[0].tensor().item(), 3);
  EXPECT_FALSE(result.aux[0].tensor().requires_grad());
  EXPECT_EQ(nn::value_and_grad(two, {.has_aux = true})(x_, y_).value.list()[1].tensor().item(), 3);
  EXPECT_EQ(message_of<ModelError>([&] { nn::grad(f, {.has_aux = true})(x_, y_); }),
            "[rank 0] value_and_grad: has_aux with a function of 1 output, allowed are 2 and more; return the "
            "auxiliary outputs too, or leave has_aux out");
  EXPECT_THAT(message_of<ModelError>([&] { nn::grad(two)(x_, y_); }), HasSubstr("output 2 is no tensor"));
}

TEST_F(FunctionalGrad, OfAnOutputThatIsNoScalarHasOnesOrTheGivenCotangent) {
  const auto square = [](const Tensor& x) { return x * x; };
  EXPECT_THAT(values(nn::grad(square)(x_).gradients.tensor()), ElementsAre(2, 4));
  const auto with_sens = nn::grad(square, {.sens_param = true});
  const Tensor sens = constant({10, 100});
  EXPECT_THAT(values(with_sens(x_, sens).gradients.tensor()), ElementsAre(20, 400));
  EXPECT_THAT(values(sens), ElementsAre(10, 100));
  EXPECT_EQ(message_of<ModelError>([&] { with_sens(x_, constant({1})); }),
            "[rank 0] value_and_grad: the cotangent of output 0 is fp64 [1], the output is fp64 [2]; give it the shape "
            "and dtype of the output");
  EXPECT_THAT(message_of<ModelError>([&] {
                with_sens(x_, std::vector<Tensor>{sens, sens});
              }),
              HasSubstr("2 cotangents for 1 differentiated outputs"));
  EXPECT_THAT(message_of<ModelError>([&] { with_sens(); }), HasSubstr("sens_param with a call of 0 arguments"));
}

TEST_F(FunctionalGrad, OfWhatTheOutputDoesNotReachIsZeros) {
  const Tensor w = leaf({7, 1, 2});
  const GradSpec spec{.positions = {0, 1}, .weights = w};
  const nn::Gradients one = nn::grad([](const Tensor& x, const Tensor&) { return x; }, spec)(x_, y_).gradients;
  EXPECT_THAT(values(one.inputs().tuple()[0]), ElementsAre(1, 1));  // the output is the input
  EXPECT_THAT(values(one.inputs().tuple()[1]), ElementsAre(0, 0));
  EXPECT_THAT(values(one.weights().tensor()), ElementsAre(0, 0, 0));
  const Tensor fixed = constant({4});
  EXPECT_THAT(values(nn::grad([&](const Tensor&) { return fixed; })(x_).gradients.tensor()), ElementsAre(0, 0));
}

// --- ids

TEST_F(FunctionalGrad, WithIdsPairsPositionsAndNamesWithGradients) {
  const Tensor w = leaf({7, 1});
  const GradSpec spec{.positions = {1, 0}, .weights = nn::GradWeights::Named{"net.w", w}, .return_ids = true};
  const auto weighted = [&](const Tensor& x, const Tensor& y) { return f(x, w) + ops::sum(y); };
  const nn::Gradients gradients = nn::grad(weighted, spec)(x_, y_).gradients;
  EXPECT_EQ(std::get<int>(gradients.inputs().pairs().at(0).first), 1);
  EXPECT_EQ(std::get<std::string>(gradients.weights().pairs().at(0).first), "net.w");
  EXPECT_THAT(values(gradients.weights().pairs().at(0).second), ElementsAre(1, 4));
  EXPECT_THAT(values(nn::get_grad(gradients, 0)), ElementsAre(14, 4));
  EXPECT_THAT(values(nn::get_grad(gradients, "net.w")), ElementsAre(1, 4));
  EXPECT_EQ(message_of<ModelError>([&] { nn::get_grad(gradients, "net.v"); }),
            "[rank 0] get_grad: no gradient has the id 'net.v'; there are 1, 0, 'net.w'");
  const nn::Gradients without = nn::grad(f)(x_, y_).gradients;
  EXPECT_EQ(message_of<ModelError>([&] { nn::get_grad(without, 0); }),
            "[rank 0] ids of 1 gradients that have none; set return_ids in the spec");
}

// --- nothing is accumulated

TEST_F(FunctionalGrad, LeavesAccumulatedGradientsAlone) {
  const Tensor w = leaf({7, 1}), v = leaf({2, 3}), x = leaf({1, 2});
  w.set_grad(constant({-1, -2}));
  const void* const before = w.grad().id();
  int accumulated = 0;
  w.register_post_accumulate_hook([&](const Tensor&) { ++accumulated; });
  const auto weighted = [&](const Tensor& input) { return f(input, w * v); };
  const nn::Gradients gradients = nn::grad(weighted, {.positions = 0, .weights = w})(x).gradients;
  EXPECT_THAT(values(gradients.weights().tensor()), ElementsAre(2, 12));
  EXPECT_EQ(w.grad().id(), before);
  EXPECT_THAT(test::grad(w), ElementsAre(-1, -2));
  EXPECT_FALSE(v.grad().defined() || x.grad().defined());
  EXPECT_EQ(accumulated, 0);
  autograd::backward(weighted(x));  // and backward() adds as ever
  EXPECT_THAT(test::grad(w), ElementsAre(1, 10));
  EXPECT_EQ(accumulated, 1);
}

TEST_F(FunctionalGrad, HasAGradientAtEachPositionOfOneTensor) {
  const nn::Gradients gradients = nn::grad(f, {.positions = {0, 1}})(x_, x_).gradients;
  EXPECT_THAT(values(gradients.tuple()[0]), ElementsAre(2, 8));
  EXPECT_THAT(values(gradients.tuple()[1]), ElementsAre(1, 4));
  EXPECT_FALSE(x_.requires_grad());
}

TEST_F(FunctionalGrad, GivesEveryGradientItsOwnBytes) {
  const Tensor w = leaf({7, 1});
  const auto sums = [&](const Tensor& x, const Tensor& y) { return x + y + w; };
  const GradSpec spec{.positions = {0, 1}, .weights = w, .sens_param = true};
  const Tensor sens = constant({1, 2});
  const nn::Gradients gradients = nn::grad(sums, spec)(x_, y_, sens).gradients;
  gradients.inputs().tuple()[0].fill(9);
  EXPECT_THAT(values(gradients.inputs().tuple()[1]), ElementsAre(1, 2));
  EXPECT_THAT(values(gradients.weights().tensor()), ElementsAre(1, 2));
  EXPECT_THAT(values(sens), ElementsAre(1, 2));
}

TEST_F(FunctionalGrad, RunsTensorHooksOfTheWeight) {
  const Tensor w = leaf({7, 1});
  w.register_hook([](const Tensor& grad) { return ops::scale(grad, 2); });
  const GradSpec spec{.positions = std::nullopt, .weights = w};
  EXPECT_THAT(values(nn::grad([&](const Tensor& x) { return f(x, w); }, spec)(x_).gradients.tensor()),
              ElementsAre(2, 8));
}

TEST_F(FunctionalGrad, LeavesTheGraphAroundItAlone) {
  const Tensor w = leaf({7, 1});
  int packed = 0;
  const autograd::SavedTensorHooksScope hooks({[&](const Tensor& t) { return ++packed, std::any(t); },
                                               [](const std::any& t) { return std::any_cast<Tensor>(t); }});
  const Tensor outer = w * w;
  EXPECT_EQ(packed, 2);
  EXPECT_THAT(values(nn::grad([&](const Tensor& x) { return f(x, outer); })(x_).gradients.tensor()),
              ElementsAre(98, 4));
  EXPECT_EQ(packed, 2);
  autograd::backward(ops::sum(outer));
  EXPECT_THAT(test::grad(w), ElementsAre(14, 2));
}

TEST_F(FunctionalGrad, KeepsNothingOfTheGraphWhenItReturns) {
  const std::int64_t before = rank_.bytes();
  nn::grad(f, {.positions = {0, 1}})(x_, y_);
  EXPECT_EQ(rank_.bytes(), before);
}

TEST_F(FunctionalGrad, RecordsUnderNoGradToo) {
  const autograd::NoGrad no_grad;
  EXPECT_THAT(values(nn::grad(f)(x_, y_).gradients.tensor()), ElementsAre(6, 20));
  EXPECT_FALSE(autograd::grad_enabled());
}

TEST_F(FunctionalGrad, LeavesTheTapeAsItWasAfterAnError) {
  const auto fails = [](const Tensor& x) -> Tensor { return x * constant({1, 2, 3}); };
  EXPECT_THROW(nn::grad(fails)(x_), ModelError);
  EXPECT_THAT(values(nn::grad(f)(x_, y_).gradients.tensor()), ElementsAre(6, 20));
}

// --- half precision, ranks

TEST_F(FunctionalGrad, HasTheDtypeOfItsInputUnderHalfPrecision) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const Tensor x = constant({1, 2}, {2}, dtype), w = leaf({3, 5}, {2}, dtype);
    const GradSpec spec{.positions = 0, .weights = w};
    const nn::Gradients gradients = nn::grad([&](const Tensor& input) { return f(input, w); }, spec)(x).gradients;
    EXPECT_EQ(gradients.inputs().tensor().dtype(), dtype);
    EXPECT_EQ(gradients.weights().tensor().dtype(), dtype);
    EXPECT_THAT(values(gradients.inputs().tensor()), ElementsAre(6, 20));
    EXPECT_THAT(values(gradients.weights().tensor()), ElementsAre(1, 4));
  }
}

TEST(FunctionalGradOfRanks, BelongToTheirThreads) {
  std::vector<std::thread> threads;
  std::vector<Doubles> results(4);
  for (std::size_t r = 0; r < results.size(); ++r) {
    threads.emplace_back([&results, r] {
      test::OneRank rank;
      for (int call = 0; call < 50; ++call) {
        const Tensor x = constant({static_cast<double>(r), 2}), y = constant({3, 5});
        results[r] = values(nn::grad(f)(x, y).gradients.tensor());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t r = 0; r < results.size(); ++r) EXPECT_THAT(results[r], ElementsAre(6.0 * r, 20)) << "thread " << r;
}

// --- refusals

TEST_F(FunctionalGrad, InsideAnotherIsRefusedUnlessItIsAConstant) {
  const auto inner = nn::grad(f);
  const auto outer = [&](const Tensor& x, const Tensor& y) { return ops::sum(inner(x, y).gradients.tensor()); };
  EXPECT_EQ(
      message_of<ModelError>([&] { nn::grad(outer)(x_, y_); }),
      "[rank 0] value_and_grad inside a function that is differentiated: gradients of gradients are not recorded; "
      "call it outside, or under autograd::NoGrad if its result is a constant there");
  const auto scaled = [&](const Tensor& x, const Tensor& y) {
    const Tensor factor = [&] {
      const autograd::NoGrad no_grad;
      return inner(x, y).gradients.tensor();
    }();
    return ops::sum(x * factor);
  };
  EXPECT_THAT(values(nn::grad(scaled)(x_, y_).gradients.tensor()), ElementsAre(6, 20));
}

TEST_F(FunctionalGrad, OfARecordedResultIsRefused) {
  const Tensor recorded = leaf({1, 2}) * y_;
  EXPECT_EQ(message_of<ModelError>([&] { nn::grad(f)(recorded, y_); }),
            "[rank 0] value_and_grad: an input is the result of a recorded operator, to which its gradient would not "
            "lead: gradients of gradients are not recorded; give detach() of it");
  EXPECT_THAT(values(nn::grad(f)(recorded.detach(), y_).gradients.tensor()), ElementsAre(18, 100));
}

TEST_F(FunctionalGrad, SaysWhatIsWrongWithASpec) {
  const auto message = [](GradSpec spec) { return message_of<ConfigError>([&] { nn::grad(f, spec); }); };
  EXPECT_EQ(message({.positions = -1}),
            "value_and_grad: position -1 in positions, allowed are 0 and more; count inputs from 0");
  EXPECT_EQ(message({.positions = {1, 1}}),
            "value_and_grad: position 1 is twice in positions, allowed is once; leave one out");
  EXPECT_THAT(message({.positions = std::vector<int>{}}), HasSubstr("positions is an empty tuple"));
  EXPECT_THAT(message({.weights = std::vector<Tensor>{}}), HasSubstr("weights is an empty list"));
  EXPECT_THAT(message({.weights = Tensor{}}), HasSubstr("weight 0 ('') is an undefined tensor"));
  const Tensor w = leaf({1, 2});
  EXPECT_THAT(message({.weights = nn::GradWeights::Named{"a\nb", w * w}}),
              HasSubstr("weight 'a\\nb' is the result of an operator, allowed are leaves"));
  EXPECT_THAT(message({.weights = nn::GradWeights::Named{"w", constant({1})}}),
              HasSubstr("weight 'w' requires no gradient"));
  EXPECT_THAT(message({.weights = std::vector<Tensor>{w, w}}), HasSubstr("is twice in weights"));
  const std::vector<nn::GradWeights::Named> same_names{{"w", w}, {"w", leaf({3})}};
  EXPECT_THAT(message({.weights = same_names, .return_ids = true}), HasSubstr("return_ids with two weights named 'w'"));
}

TEST_F(FunctionalGrad, SaysWhatIsWrongWithACall) {
  const auto message = [](const auto& run) { return message_of<ModelError>(run); };
  EXPECT_EQ(message([&] { nn::grad(f, {.positions = 2})(x_, y_); }),
            "[rank 0] value_and_grad: position 2 of a call with 2 inputs; allowed are positions below 2");
  EXPECT_THAT(message([&] {
                nn::grad(f)(test::ids({1, 2}), y_);
              }),
              HasSubstr("input 0 is int64, allowed are floating dtypes"));
  const nn::Function any = [](const nn::Args& args) -> nn::Value { return args.tensor(0); };
  EXPECT_THAT(message([&] { nn::grad(any, {.positions = 1})(x_, 3); }), HasSubstr("input 1 is no tensor"));
  EXPECT_THAT(message([&] { nn::grad(f)(x_); }),
              HasSubstr("1 positional and 0 named arguments for a function of 2 tensors"));
  const nn::Function none = [](const nn::Args&) -> nn::Value { return nn::ValueList{}; };
  EXPECT_THAT(message([&] { nn::grad(none)(x_); }), HasSubstr("a function of 0 outputs"));
}

// --- modules

void fill(nn::Module& module, DType dtype) {
  std::uint64_t stream = 0;
  for (const auto& [path, slot] : module.named_slots()) {
    Doubles drawn = test::normals(slot->value.numel(), stream++);
    for (double& value : drawn) value *= 0.3;
    slot->value = leaf(drawn, slot->value.shape(), dtype);
  }
}

// Central differences: error h^2 f''' / 6 + 1e-16 |f| / h, about 1e-9 for h = 1e-5.
void expect_derivatives(nn::Module& module, const Tensor& x) {
  const auto loss = [&] {
    const autograd::NoGrad no_grad;
    return ops::sum(module(x).tensor()).item();
  };
  const GradSpec spec{.positions = 0, .weights = module.named_parameters()};
  const nn::Gradients gradients = nn::grad(module, spec)(x).gradients;
  std::vector<std::pair<Tensor, Tensor>> pairs{{x, gradients.inputs().tensor()}};
  for (std::size_t i = 0; i < spec.weights.list().size(); ++i) {
    pairs.emplace_back(spec.weights.list()[i].second, gradients.weights().tuple()[i]);
  }
  for (const auto& [tensor, gradient] : pairs) {
    const Doubles derivative = values(gradient);
    for (std::size_t e = 0; e < derivative.size(); ++e) {
      double* const element = tensor.data<double>() + e;
      const double value = *element;
      *element = value + 1e-5;
      const double above = loss();
      *element = value - 1e-5;
      const double below = loss();
      *element = value;
      EXPECT_NEAR(derivative[e], (above - below) / 2e-5, 5e-8) << "element " << e;
    }
  }
}

TEST(FunctionalGradOfModules, AreTheDerivativesOfAnMlp) {
  test::OneRank rank;
  test::Mlp mlp(3, 4);
  fill(mlp, DType::kF64);
  expect_derivatives(mlp, constant(test::normals(6, 50), {2, 3}));
}

TEST(FunctionalGradOfModules, AreTheDerivativesOfADecoderLayer) {
  test::OneRank rank;
  test::Block block(4, 2);
  fill(block, DType::kF64);
  expect_derivatives(block, constant(test::normals(12, 50), {1, 3, 4}));
}

class SameBits : public ::testing::TestWithParam<DType> {};

// Embedding, two decoder layers and a head that is tied to the embedding.
TEST_P(SameBits, AsBackward) {
  test::OneRank rank;
  test::ToyModel model(11, 8, 2, 2);
  fill(model, GetParam());
  const Tensor ids = Tensor::from(std::vector<std::int64_t>{3, 1, 4, 1, 5, 9}, {2, 3});
  const Tensor targets = Tensor::from(std::vector<std::int64_t>{1, 4, 1, 5, 9, 2}, {2, 3});
  const Tensor loss = model(ids, targets);
  autograd::backward(loss);
  const GradSpec spec{.positions = std::nullopt, .weights = model.named_parameters()};
  const nn::ValueAndGrad result = nn::value_and_grad(model, spec)(ids, targets);
  EXPECT_EQ(values(result.value.tensor()), values(loss));
  ASSERT_EQ(result.gradients.tuple().size(), spec.weights.list().size());
  for (std::size_t i = 0; i < spec.weights.list().size(); ++i) {
    const auto& [path, weight] = spec.weights.list()[i];
    EXPECT_EQ(values(result.gradients.tuple()[i]), test::grad(weight)) << path;
  }
}

// Some weights only: what leads to the others alone does not run, and the bits are the same.
TEST_P(SameBits, ForSomeOfTheWeights) {
  test::OneRank rank;
  test::Block block(8, 2);
  fill(block, GetParam());
  const Tensor x = constant(test::normals(48, 50), {2, 3, 8}, GetParam());
  autograd::backward(ops::sum(block(x).tensor()));
  const Tensor some = block.named_parameters().at(1).second;
  const auto loss = [&](const Tensor& input) { return ops::sum(block(input).tensor()); };
  const GradSpec spec{.positions = std::nullopt, .weights = some};
  EXPECT_EQ(values(nn::grad(loss, spec)(x).gradients.tensor()), test::grad(some));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, SameBits, ::testing::Values(DType::kF32, DType::kBF16, DType::kF16, DType::kF64),
                         [](const auto& info) { return std::string(name(info.param)); });

}  // namespace
}  // namespace loom
