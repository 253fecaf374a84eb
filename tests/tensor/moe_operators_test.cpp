// Promise: the operators of mixture-of-experts layers compute each token with the experts it chose and no other, have
//          the gradients of that computation, and count what they do.
//
// References in fp64, written out here. Numeric gradients are central differences, as in operator_gradients_test.cpp.
#include <cmath>
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/device/recorder.h"
#include "engine/tensor/ops/moe.h"
#include "engine/tensor/ops/routing.h"
#include "tests/support/issued.h"
#include "tests/tensor/tensors.h"

namespace loom {
namespace {

using test::Doubles;
using test::leaf;
using test::normals;
using Indices = std::vector<std::int64_t>;
using ::testing::StrEq;
using ::testing::ThrowsMessage;

constexpr std::int64_t kTokens = 6, kDim = 5, kExperts = 4, kChoices = 2, kOut = 3;

// The choices of 6 tokens; nobody chose expert 2.
Tensor choices() { return Tensor::from(Indices{3, 0, 0, 3, 3, 1, 1, 0, 0, 1, 3, 1}, {kTokens, kChoices}); }
ops::ExpertRows order() { return ops::sort_by_expert(choices(), kExperts); }

Tensor weighted_sum(const Tensor& y) {
  return test::sum(ops::mul(y, test::constant(normals(y.numel(), 99), y.shape())));
}

using Function = std::function<Tensor()>;

// Every element of the leaves' gradients against central differences: step 1e-5, error about 1e-9.
void expect_gradients(const std::vector<Tensor>& leaves, const Function& f) {
  const auto loss = [&] {
    const autograd::NoGrad no_grad;
    return weighted_sum(f()).item();
  };
  autograd::backward(weighted_sum(f()));
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    ASSERT_TRUE(leaves[i].grad().defined()) << "input " << i;
    const Doubles gradient = test::grad(leaves[i]);
    for (std::size_t e = 0; e < gradient.size(); ++e) {
      double& element = leaves[i].data<double>()[e];
      const double value = element;
      element = value + 1e-5;
      const double above = loss();
      element = value - 1e-5;
      const double below = loss();
      element = value;
      const double expected = (above - below) / 2e-5;
      EXPECT_NEAR(gradient[e], expected, 2e-8 * std::max(1.0, std::abs(expected))) << "input " << i << " element " << e;
    }
  }
}

class MoeOperators : public ::testing::Test {
 protected:
  test::OneRank rank;
};

TEST_F(MoeOperators, RouteByTheSoftmaxOverAllExperts) {
  const Doubles logits = normals(kTokens * kExperts, 1);
  for (const bool renormalize : {false, true}) {
    const ops::Routing routing =
        ops::route(test::constant(logits, {kTokens, kExperts}), {.k = kChoices, .renormalize = renormalize});
    const Indices experts = routing.experts.to_vector<std::int64_t>();
    const Doubles weights = test::values(routing.weights);
    for (std::size_t t = 0; t < kTokens; ++t) {
      double all = 0, chosen = 0;
      for (std::size_t e = 0; e < kExperts; ++e) all += std::exp(logits[t * kExperts + e]);
      const auto prob = [&](std::size_t j) {
        return std::exp(logits[t * kExperts + static_cast<std::size_t>(experts[t * kChoices + j])]) / all;
      };
      for (std::size_t j = 0; j < kChoices; ++j) chosen += prob(j);
      for (std::size_t j = 0; j < kChoices; ++j) {
        EXPECT_NEAR(weights[t * kChoices + j], renormalize ? prob(j) / chosen : prob(j), 1e-14);
      }
      EXPECT_GE(weights[t * kChoices], weights[t * kChoices + 1]);
    }
  }
}

// Probabilities 0.12497 and, of logit 0.251953, 0.12521: in bf16 both would be 0.125, and expert 0 would be first.
TEST_F(MoeOperators, RouteInFp32AndRoundTheWeightsToTheTypeOfTheLogits) {
  const std::vector<float> logits{0.25f, 0.251953125f, 0.25f, 0.25f, 0.25f, 0.25f, 0.25f, 0.25f};
  const ops::Routing routing = ops::route(Tensor::from(logits, {1, 8}, DType::kBF16), {.k = 2});
  EXPECT_EQ(routing.weights.dtype(), DType::kBF16);
  EXPECT_EQ(routing.experts.to_vector<std::int64_t>(), (Indices{1, 0}));
  EXPECT_EQ(test::values(routing.weights), (Doubles{0.125, 0.125}));
}

TEST_F(MoeOperators, GiveTheRouterItsGradient) {
  for (const bool renormalize : {false, true}) {
    const Tensor logits = leaf(normals(kTokens * kExperts, 1), {kTokens, kExperts});
    expect_gradients({logits}, [&] { return ops::route(logits, {.k = kChoices, .renormalize = renormalize}).weights; });
  }
}

// Weights that sum to 1 have no gradient along themselves: of one expert alone none at all.
TEST_F(MoeOperators, OfOneRenormalisedChoiceTheWeightIsOneAndHasNoGradient) {
  const Tensor logits = leaf(normals(kTokens * kExperts, 1), {kTokens, kExperts});
  const Tensor weights = ops::route(logits, {.k = 1, .renormalize = true}).weights;
  EXPECT_EQ(test::values(weights), Doubles(kTokens, 1.0));
  autograd::backward(weighted_sum(weights));
  EXPECT_EQ(test::grad(logits), Doubles(kTokens * kExperts, 0.0));
}

TEST_F(MoeOperators, GatherTheTokensOfEveryExpertAndSumTheirGradients) {
  const Tensor x = leaf(normals(kTokens * kDim, 1), {kTokens, kDim});
  const Doubles rows = test::values(ops::gather_tokens(x, order())), from = test::values(x);
  const Indices tokens{0, 1, 3, 4, 2, 3, 4, 5, 0, 1, 2, 5};  // experts 0 0 0 0, 1 1 1 1, 3 3 3 3
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    for (std::size_t i = 0; i < kDim; ++i) {
      EXPECT_EQ(rows[r * kDim + i], from[static_cast<std::size_t>(tokens[r]) * kDim + i]);
    }
  }
  expect_gradients({x}, [&] { return ops::gather_tokens(x, order()); });
}

TEST_F(MoeOperators, MultiplyEveryRowWithItsExpertsMatrix) {
  const Tensor x = leaf(normals(12 * kDim, 1), {12, kDim});
  const Tensor weight = leaf(normals(kExperts * kOut * kDim, 2), {kExperts, kOut, kDim});
  const Doubles y = test::values(ops::grouped_linear(x, weight, order())), a = test::values(x),
                w = test::values(weight);
  for (std::size_t r = 0; r < 12; ++r) {
    const std::size_t expert = r < 4 ? 0 : r < 8 ? 1 : 3;
    for (std::size_t n = 0; n < kOut; ++n) {
      double sum = 0;
      for (std::size_t i = 0; i < kDim; ++i) sum += a[r * kDim + i] * w[(expert * kOut + n) * kDim + i];
      EXPECT_NEAR(y[r * kOut + n], sum, 1e-13);
    }
  }
  expect_gradients({x, weight}, [&] { return ops::grouped_linear(x, weight, order()); });
}

TEST_F(MoeOperators, GiveAnExpertWithoutTokensAGradientOfZeros) {
  const Tensor x = test::constant(normals(12 * kDim, 1), {12, kDim});
  const Tensor weight = leaf(normals(kExperts * kOut * kDim, 2), {kExperts, kOut, kDim});
  autograd::backward(weighted_sum(ops::grouped_linear(x, weight, order())));
  const Doubles gradient = test::grad(weight);
  constexpr std::size_t kMatrix = kOut * kDim;
  for (std::size_t e = 0; e < kExperts; ++e) {
    const bool zero = std::all_of(gradient.begin() + e * kMatrix, gradient.begin() + (e + 1) * kMatrix,
                                  [](double value) { return value == 0; });
    EXPECT_EQ(zero, e == 2) << "expert " << e;
  }
}

TEST_F(MoeOperators, CombineATokensRowsByTheirWeights) {
  const Tensor x = leaf(normals(12 * kDim, 1), {12, kDim});
  const Tensor weights = leaf(normals(kTokens * kChoices, 2), {kTokens, kChoices});
  expect_gradients({x, weights}, [&] { return ops::combine_tokens(x, weights, order()); });
}

// Frozen experts below a trained router, and the reverse.
TEST_F(MoeOperators, GiveNoGradientToWhatIsFrozen) {
  const Tensor x = test::constant(normals(12 * kDim, 1), {12, kDim}), trained_x = leaf(test::values(x), {12, kDim});
  const Doubles w = normals(kTokens * kChoices, 2);
  const Tensor weights = leaf(w, {kTokens, kChoices}), frozen_weights = test::constant(w, {kTokens, kChoices});
  autograd::backward(weighted_sum(ops::combine_tokens(x, weights, order())));
  autograd::backward(weighted_sum(ops::combine_tokens(trained_x, frozen_weights, order())));
  EXPECT_FALSE(x.grad().defined());
  EXPECT_FALSE(frozen_weights.grad().defined());
  const Tensor both_x = leaf(test::values(x), {12, kDim}), both_weights = leaf(w, {kTokens, kChoices});
  autograd::backward(weighted_sum(ops::combine_tokens(both_x, both_weights, order())));
  EXPECT_EQ(test::grad(weights), test::grad(both_weights));
  EXPECT_EQ(test::grad(trained_x), test::grad(both_x));
}

// A whole layer: the sum over a token's experts of weight * (expert's matrix . token), next to one that computes every
// expert for every token.
TEST_F(MoeOperators, EqualADenseComputationOfAllExperts) {
  const Tensor logits = leaf(normals(kTokens * kExperts, 1), {kTokens, kExperts});
  const Tensor x = leaf(normals(kTokens * kDim, 2), {kTokens, kDim});
  const Tensor weight = leaf(normals(kExperts * kOut * kDim, 3), {kExperts, kOut, kDim});
  const Function layer = [&] {
    const ops::Routing routing = ops::route(logits, {.k = kChoices, .renormalize = true});
    const ops::ExpertRows rows = ops::sort_by_expert(routing.experts, kExperts);
    return ops::combine_tokens(ops::grouped_linear(ops::gather_tokens(x, rows), weight, rows), routing.weights, rows);
  };
  const ops::Routing routing = ops::route(logits, {.k = kChoices, .renormalize = true});
  const Doubles w = test::values(routing.weights), a = test::values(x), matrices = test::values(weight);
  const Indices experts = routing.experts.to_vector<std::int64_t>();
  Doubles want(kTokens * kOut);
  for (std::size_t slot = 0; slot < kTokens * kChoices; ++slot) {
    const std::size_t token = slot / kChoices, expert = static_cast<std::size_t>(experts[slot]);
    for (std::size_t i = 0; i < kOut * kDim; ++i) {
      want[token * kOut + i / kDim] += w[slot] * matrices[expert * kOut * kDim + i] * a[token * kDim + i % kDim];
    }
  }
  const Doubles y = test::values(layer());
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], want[i], 1e-13);
  expect_gradients({logits, x, weight}, layer);
}

// Of 12 choices, 4 experts take 2 each.
TEST_F(MoeOperators, GiveDroppedChoicesNeitherAShareNorAGradientPaddedOrNot) {
  const Tensor logits = leaf(normals(kTokens * kExperts, 1), {kTokens, kExperts});
  const Tensor x = leaf(normals(kTokens * kDim, 2), {kTokens, kDim});
  const Tensor weight = leaf(normals(kExperts * kOut * kDim, 3), {kExperts, kOut, kDim});
  const auto layer = [&](bool padded) {
    const ops::Routing routing =
        ops::drop_beyond_capacity(ops::route(logits, {.k = kChoices}), 2, ops::DropPolicy::kProbability);
    const ops::ExpertRows rows = ops::sort_by_expert(routing.experts, kExperts, {2, padded});
    EXPECT_EQ(rows.row_slots.numel(), 8);
    return ops::combine_tokens(ops::grouped_linear(ops::gather_tokens(x, rows), weight, rows), routing.weights, rows);
  };
  const ops::Routing routing =
      ops::drop_beyond_capacity(ops::route(logits, {.k = kChoices}), 2, ops::DropPolicy::kProbability);
  const Indices experts = routing.experts.to_vector<std::int64_t>();
  const Doubles weights = test::values(routing.weights), from = test::values(x), w = test::values(weight);
  Doubles want(kTokens * kOut);
  std::int64_t dropped = 0;
  for (std::size_t slot = 0; slot < experts.size(); ++slot) {
    if (experts[slot] < 0) {
      ++dropped;
      EXPECT_EQ(weights[slot], 0.0);
      continue;
    }
    for (std::size_t n = 0; n < kOut; ++n) {
      for (std::size_t i = 0; i < kDim; ++i) {
        want[slot / kChoices * kOut + n] += weights[slot] * from[slot / kChoices * kDim + i] *
                                            w[(static_cast<std::size_t>(experts[slot]) * kOut + n) * kDim + i];
      }
    }
  }
  EXPECT_GE(dropped, 4);
  for (const bool padded : {false, true}) {
    const Doubles y = test::values(layer(padded));
    for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], want[i], 1e-13);
  }
  expect_gradients({logits, x, weight}, [&] { return layer(true); });
}

TEST_F(MoeOperators, GiveEveryRouterItsGradient) {
  using enum ops::RouterScore;
  for (const ops::RouterOptions& options :
       {ops::RouterOptions{.k = 2, .score = kSoftmaxOfChosen, .scale = 1.5},
        ops::RouterOptions{.k = 2, .score = kSigmoid, .renormalize = true, .scale = 2.5},
        ops::RouterOptions{.k = 2, .score = kSigmoid, .groups = 2, .best_groups = 1, .best_in_group = 2}}) {
    const Tensor logits = leaf(normals(kTokens * kExperts, 1), {kTokens, kExperts});
    expect_gradients({logits}, [&] { return ops::route(logits, options).weights; });
  }
}

// With probabilities of 1 / E every expert has its share: Megatron's loss is then its coefficient, Hugging Face's k
// times that.
TEST_F(MoeOperators, GiveHuggingFacesBalanceLossKTimesMegatrons) {
  const Tensor logits = Tensor::zeros({kTokens, kExperts}, DType::kF64);
  const Tensor sums = ops::probability_sums(ops::balance_probabilities(logits, ops::RouterScore::kSoftmax));
  const Tensor counts = ops::count_choices(choices(), kExperts, DType::kF64);
  EXPECT_EQ(test::values(counts), (Doubles{4, 4, 0, 4}));
  constexpr double t = kTokens;
  EXPECT_DOUBLE_EQ(ops::balance_loss(sums, counts, kExperts / (kChoices * t * t)).item(), 1.0);
  EXPECT_DOUBLE_EQ(ops::balance_loss(sums, counts, kExperts / (t * t)).item(), kChoices);
}

TEST_F(MoeOperators, MoveTheBiasOfAnExpertAgainstItsLoadAndKeepItAtTheMean) {
  const Tensor bias = Tensor::from(Doubles{0.5, 0, -1, 0.25}, {4});
  ops::update_expert_bias(bias, Tensor::from(Doubles{4, 2, 0, 2}, {4}), 0.125);
  EXPECT_EQ(test::values(bias), (Doubles{0.375, 0, -0.875, 0.25}));
}

TEST_F(MoeOperators, RefuseRoutersThatCannotChoose) {
  const auto refused = [](const ops::RouterOptions& options, const Shape& bias, const std::string& text) {
    const auto call = [&] {
      ops::route(Tensor::zeros({2, 8}, DType::kF32), options,
                 bias.ndim() == 0 ? Tensor{} : Tensor::zeros(bias, DType::kF32));
    };
    EXPECT_THAT(call, ThrowsMessage<ModelError>(StrEq("[rank 0] route: " + text)));
  };
  refused({.k = 2}, {7}, "a bias [7] for 8 experts; one for each is needed");
  refused({.k = 2, .groups = 3}, {}, "8 experts in 3 groups; the groups have equal sizes");
  refused({.k = 5, .groups = 4, .best_groups = 2}, {},
          "5 experts of the best 2 of 4 groups of 2; so many groups have to hold them");
  refused({.k = 2, .groups = 4, .best_groups = 2, .best_in_group = 3}, {},
          "a group's score is of its 3 best experts, and it has 2; choose 1 to all");
}

TEST_F(MoeOperators, RefuseShapesThatDoNotFit) {
  const auto expect_refused = [](const std::function<void()>& call, const std::string& text) {
    EXPECT_THAT(call, ThrowsMessage<ModelError>(StrEq("[rank 0] " + text)));
  };
  const auto fp32 = [](const Shape& shape) { return Tensor::zeros(shape, DType::kF32); };
  expect_refused(
      [&] {
        ops::route(fp32({2, 4}), {.k = 5});
      },
      "route: 5 of [2, 4]; logits are [tokens, experts], and each token has 1 to all of the experts");
  expect_refused(
      [&] {
        ops::sort_by_expert(fp32({2, 4}), 4);
      },
      "sort_by_expert: fp32 [2, 4] among 4 experts; choices are int64 [tokens, k], of at least one expert");
  expect_refused([&] { ops::sort_by_expert(choices(), 3); },
                 "sort_by_expert: token 0 chose expert 3 of 3; choices count from 0");
  expect_refused(
      [&] {
        ops::gather_tokens(fp32({5, 4}), order());
      },
      "gather_tokens: [5, 4] for 6 tokens; [tokens, dim] is needed");
  expect_refused(
      [&] {
        ops::grouped_linear(fp32({11, 4}), fp32({4, 3, 4}), order());
      },
      "grouped_linear: [11, 4] with 12 rows in order of expert; [rows, dim] is needed");
  expect_refused(
      [&] {
        ops::grouped_linear(fp32({12, 4}), fp32({3, 3, 4}), order());
      },
      "grouped_linear: input fp32 [12, 4] with weight fp32 [3, 3, 4] of 4 experts; a weight [experts, outputs, inputs] "
      "takes an input of as many inputs, in one dtype");
  expect_refused(
      [&] {
        ops::combine_tokens(fp32({12, 4}), fp32({6, 3}), order());
      },
      "combine_tokens: fp32 [12, 4] with weights fp32 [6, 3]; weights are [tokens, k] in the dtype of the rows");
}

// --- what is counted ---

device::Cost cost_of(device::Device& device, std::string_view kernel, const Function& f) {
  const device::Recorder recorder(device);
  f();
  for (const test::Issued& entry : test::issued(recorder.recording())) {
    if (entry.name == kernel) return entry.cost;
  }
  ADD_FAILURE() << kernel << " did not run";
  return {};
}

TEST_F(MoeOperators, CountTheProductsOfChosenExpertsOnly) {
  const Tensor x = Tensor::zeros({12, kDim}, DType::kF32);
  const Tensor weight = Tensor::zeros({kExperts, kOut, kDim}, DType::kF32);
  const device::Cost cost =
      cost_of(rank.device(), "grouped_linear", [&] { return ops::grouped_linear(x, weight, order()); });
  EXPECT_EQ(cost.flops, 2.0 * 12 * kOut * kDim);
  EXPECT_EQ(cost.read_bytes, 4 * (12 * kDim + 3 * kOut * kDim));  // expert 2 is not read
  EXPECT_EQ(cost.written_bytes, 4 * 12 * kOut);
  // Products of the three experts in use, of 4 rows each.
  EXPECT_EQ(cost.unit, device::Unit::kMatrix);
  EXPECT_EQ(cost.dtype, DType::kF32);
  EXPECT_EQ(cost.batch, 3);
  EXPECT_EQ((std::array{cost.m, cost.n, cost.k}), (std::array<std::int64_t, 3>{4, kOut, kDim}));
}

TEST_F(MoeOperators, CountTheProductsOfTheGradients) {
  const Tensor x = Tensor::zeros({12, kDim}, DType::kF32).set_requires_grad(true);
  const Tensor weight = Tensor::zeros({kExperts, kOut, kDim}, DType::kF32).set_requires_grad(true);
  const auto backward = [&] {
    const Tensor y = ops::grouped_linear(x, weight, order());
    autograd::backward(y, Tensor::zeros(y.shape(), DType::kF32));
    return y;
  };
  const device::Cost dx = cost_of(rank.device(), "grouped_linear_dx", backward);
  const device::Cost dw = cost_of(rank.device(), "grouped_linear_dw", backward);
  for (const device::Cost& cost : {dx, dw}) {
    EXPECT_EQ(cost.unit, device::Unit::kMatrix);
    EXPECT_EQ(cost.batch, 3);
    EXPECT_EQ(cost.flops, 2.0 * 12 * kOut * kDim);
  }
  EXPECT_EQ((std::array{dx.m, dx.n, dx.k}), (std::array<std::int64_t, 3>{4, kDim, kOut}));
  EXPECT_EQ((std::array{dw.m, dw.n, dw.k}), (std::array<std::int64_t, 3>{kOut, kDim, 4}));
}

TEST(MoeOperatorsDryRun, HasTheShapesAndTheCostsOfBalancedRouting) {
  test::OneRank rank(device::DeviceOptions{.dry_run = true});
  const auto layer = [&](std::int64_t tokens) {
    const Tensor logits = Tensor::empty({tokens, kExperts}, DType::kBF16);
    const Tensor x = Tensor::empty({tokens, kDim}, DType::kBF16);
    const Tensor weight = Tensor::empty({kExperts, kOut, kDim}, DType::kBF16);
    const ops::Routing routing = ops::route(logits, {.k = kChoices, .renormalize = true});
    const ops::ExpertRows rows = ops::sort_by_expert(routing.experts, kExperts);
    return ops::combine_tokens(ops::grouped_linear(ops::gather_tokens(x, rows), weight, rows), routing.weights, rows);
  };
  EXPECT_EQ(layer(kTokens).shape(), (Shape{kTokens, kOut}));
  const device::Cost many = cost_of(rank.device(), "grouped_linear", [&] { return layer(kTokens); });
  EXPECT_EQ(many.flops, 2.0 * kTokens * kChoices * kOut * kDim);
  EXPECT_EQ(many.read_bytes, 2 * (kTokens * kChoices * kDim + kExperts * kOut * kDim));
  const device::Cost one = cost_of(rank.device(), "grouped_linear", [&] { return layer(1); });
  EXPECT_EQ(one.read_bytes, 2 * (kChoices * kDim + kChoices * kOut * kDim));  // two rows can use two experts
}

// A dry run counts the bytes of a real one.
TEST(MoeOperatorsDryRun, HoldsTheBytesOfARun) {
  const auto peak = [](bool dry) {
    test::OneRank rank(device::DeviceOptions{.dry_run = dry});
    const Shape shape{64, 32};
    const Tensor x = Tensor::zeros(shape, DType::kF32).set_requires_grad(true);
    const Tensor weight = Tensor::zeros({8, 48, 32}, DType::kF32).set_requires_grad(true);
    const Tensor logits = Tensor::zeros({64, 8}, DType::kF32).set_requires_grad(true);
    const ops::Routing routing = ops::route(logits, {.k = 3, .renormalize = true});
    const ops::ExpertRows rows = ops::sort_by_expert(routing.experts, 8);
    const Tensor y =
        ops::combine_tokens(ops::grouped_linear(ops::gather_tokens(x, rows), weight, rows), routing.weights, rows);
    autograd::backward(y, Tensor::zeros(y.shape(), DType::kF32));
    return std::pair(rank.stats().peak_bytes, rank.bytes());
  };
  EXPECT_EQ(peak(true), peak(false));
}

}  // namespace
}  // namespace loom
