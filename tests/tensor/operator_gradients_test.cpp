// Promise: the gradient of every operator, in both grains, is the derivative of its result.
//
// Central differences in fp64 of L = sum(w * f(x)) with fixed random w: error h^2 f''' / 6 + 1e-16 |L| / h, about 1e-9
// for h = 1e-5.
#include <cmath>
#include <gmock/gmock.h>

#include "engine/core/rng_state.h"
#include "engine/tensor/ops/general.h"
#include "engine/tensor/ops/vision.h"
#include "tests/tensor/tensors.h"

namespace loom {
namespace {

using test::Doubles;
using Inputs = std::vector<Tensor>;
using Function = std::function<Tensor(const Inputs&)>;

constexpr double kStep = 1e-5;
constexpr double kTolerance = 2e-8;

struct Case {
  std::string name;
  std::vector<Shape> shapes;
  Function f;
};

Tensor weighted_sum(const Tensor& y) {
  return test::sum(ops::mul(y, test::constant(test::normals(y.numel(), 99), y.shape())));
}

double loss_of(const Case& c, const Inputs& inputs) {
  const autograd::NoGrad no_grad;
  return weighted_sum(c.f(inputs)).item();
}

double difference(const Case& c, const Inputs& inputs, double* element) {
  const double value = *element;
  *element = value + kStep;
  const double above = loss_of(c, inputs);
  *element = value - kStep;
  const double below = loss_of(c, inputs);
  *element = value;
  return (above - below) / (2 * kStep);
}

class Gradient : public ::testing::TestWithParam<Case> {};

TEST_P(Gradient, IsTheDerivativeOfTheResult) {
  test::OneRank rank;
  const Case& c = GetParam();
  Inputs inputs;
  for (std::size_t i = 0; i < c.shapes.size(); ++i) {
    inputs.push_back(test::leaf(test::normals(c.shapes[i].numel(), i), c.shapes[i]));
  }
  autograd::backward(weighted_sum(c.f(inputs)));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    ASSERT_TRUE(inputs[i].grad().defined()) << "input " << i;
    const Doubles gradient = test::grad(inputs[i]);
    for (std::size_t e = 0; e < gradient.size(); ++e) {
      const double expected = difference(c, inputs, inputs[i].data<double>() + e);
      EXPECT_NEAR(gradient[e], expected, kTolerance * std::max(1.0, std::abs(expected)))
          << "input " << i << ", element " << e;
    }
  }
}

Tensor targets() { return test::ids({2, ops::kIgnoreIndex, 0, 6, 3}); }

// cos or sin of S x D tables, halves duplicated, as a model makes them.
Tensor table(std::int64_t seq, std::int64_t dim, bool cosine) {
  Doubles values;
  for (std::int64_t s = 0; s < seq; ++s) {
    for (std::int64_t d = 0; d < dim; ++d) {
      const double angle =
          static_cast<double>(s) * std::pow(10.0, -2.0 * static_cast<double>(d % (dim / 2)) / static_cast<double>(dim));
      values.push_back(cosine ? std::cos(angle) : std::sin(angle));
    }
  }
  return test::constant(values, {seq, dim});
}

// Letters: B 2, S 5, H 6 query heads, G 2 key/value heads, D 4.
const Shape kQ{2, 5, 6, 4};
const Shape kKv{2, 5, 2, 4};
const Shape kFewQ{2, 3, 6, 4};

// One result of two.
Tensor both(const ops::AttentionResult& result) {
  return ops::mul_rows(ops::swap_dims_1_2(result.out), result.log_sum_exp);
}

INSTANTIATE_TEST_SUITE_P(
    Fused, Gradient,
    ::testing::Values(
        Case{"linear", {{3, 5, 7}, {11, 7}}, [](const Inputs& x) { return ops::linear(x[0], x[1]); }},
        Case{"linear_bias", {{3, 7}, {5, 7}, {5}}, [](const Inputs& x) { return ops::linear(x[0], x[1], x[2]); }},
        Case{"linear_kn", {{3, 7}, {7, 5}, {5}}, [](const Inputs& x) { return ops::linear_kn(x[0], x[1], x[2]); }},
        Case{"embedding",
             {{7, 3}},
             [](const Inputs& x) {
               return ops::embedding(test::ids({6, 0, 6, 2}), x[0]);
             }},
        Case{"add", {{3, 5}, {3, 5}}, [](const Inputs& x) { return ops::add(x[0], x[1]); }},
        Case{"add_rows", {{4, 3, 5}, {3, 5}}, [](const Inputs& x) { return ops::add(x[0], x[1]); }},
        Case{"scale", {{3, 5}}, [](const Inputs& x) { return ops::scale(x[0], -1.7); }},
        Case{"tanh", {{3, 5}}, [](const Inputs& x) { return ops::tanh(x[0]); }},
        Case{"reshape",
             {{3, 5}},
             [](const Inputs& x) {
               return ops::reshape(x[0], {5, 3});
             }},
        Case{"split_last",
             {{3, 7}},
             [](const Inputs& x) {
               return ops::split_last(x[0], {2, 4, 1})[1];
             }},
        Case{"mean", {{3, 5}}, [](const Inputs& x) { return ops::mean(x[0]); }},
        Case{"rms_norm", {{3, 7}, {7}}, [](const Inputs& x) { return ops::rms_norm(x[0], x[1], 1e-5); }},
        Case{"layer_norm", {{3, 7}, {7}, {7}}, [](const Inputs& x) { return ops::layer_norm(x[0], x[1], x[2], 1e-5); }},
        Case{"swiglu", {{3, 5}, {3, 5}}, [](const Inputs& x) { return ops::swiglu(x[0], x[1]); }},
        Case{"gelu_tanh", {{3, 5}}, [](const Inputs& x) { return ops::gelu(x[0], ops::Gelu::kTanh); }},
        Case{"gelu_erf", {{3, 5}}, [](const Inputs& x) { return ops::gelu(x[0], ops::Gelu::kErf); }},
        Case{"rope",
             {{2, 3, 2, 6}},
             [](const Inputs& x) { return ops::rope(x[0], table(3, 6, true), table(3, 6, false)); }},
        Case{"attention", {kQ, kKv, kKv}, [](const Inputs& x) { return ops::attention(x[0], x[1], x[2], 0.3); }},
        Case{"attention_at_the_end",
             {kFewQ, kKv, kKv},
             [](const Inputs& x) { return ops::attention(x[0], x[1], x[2], 0.3); }},
        Case{"attention_at_a_start",
             {kFewQ, kKv, kKv},
             [](const Inputs& x) { return ops::attention(x[0], x[1], x[2], 0.3, true, 1); }},
        Case{"attention_with_log_sum_exp",
             {kFewQ, kKv, kKv},
             [](const Inputs& x) { return both(ops::attention_with_log_sum_exp(x[0], x[1], x[2], 0.3)); }},
        Case{"log_sum_exp_of_attention",
             {kFewQ, kKv, kKv},
             [](const Inputs& x) { return ops::attention_with_log_sum_exp(x[0], x[1], x[2], 0.3, false).log_sum_exp; }},
        Case{"attention_not_causal",
             {kQ, kKv, kKv},
             [](const Inputs& x) { return ops::attention(x[0], x[1], x[2], 0.3, false); }},
        Case{"cross_entropy", {{5, 7}}, [](const Inputs& x) { return ops::cross_entropy(x[0], targets()); }}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Composed, Gradient,
    ::testing::Values(
        Case{"mul", {{3, 5}, {3, 5}}, [](const Inputs& x) { return ops::mul(x[0], x[1]); }},
        Case{"mul_suffix", {{4, 3, 5}, {3, 5}}, [](const Inputs& x) { return ops::mul(x[0], x[1]); }},
        Case{"mul_rows", {{4, 3, 5}, {4, 3}}, [](const Inputs& x) { return ops::mul_rows(x[0], x[1]); }},
        Case{"neg", {{3, 5}}, [](const Inputs& x) { return ops::neg(x[0]); }},
        Case{"silu", {{3, 5}}, [](const Inputs& x) { return ops::silu(x[0]); }},
        Case{"mean_square", {{3, 4, 5}}, [](const Inputs& x) { return ops::mean_square(x[0]); }},
        Case{"rsqrt_eps", {{3, 5}}, [](const Inputs& x) { return ops::rsqrt_eps(ops::mul(x[0], x[0]), 0.5); }},
        Case{"rotate_half", {{3, 6}}, [](const Inputs& x) { return ops::rotate_half(x[0]); }},
        Case{"swap_dims_1_2", {{2, 3, 4, 5}}, [](const Inputs& x) { return ops::swap_dims_1_2(x[0]); }},
        Case{"repeat_kv", {{2, 3, 4, 5}}, [](const Inputs& x) { return ops::repeat_kv(x[0], 3); }},
        Case{"bmm", {{2, 3, 4, 5}, {2, 3, 5, 7}}, [](const Inputs& x) { return ops::bmm(x[0], x[1], false); }},
        Case{"bmm_transposed", {{6, 4, 5}, {6, 7, 5}}, [](const Inputs& x) { return ops::bmm(x[0], x[1], true); }},
        Case{"attention_at_a_start",
             {kFewQ, kKv, kKv},
             [](const Inputs& x) { return ops::composed::attention(x[0], x[1], x[2], 0.3, true, 1); }},
        Case{"attention_with_log_sum_exp",
             {kFewQ, kKv, kKv},
             [](const Inputs& x) { return both(ops::composed::attention_with_log_sum_exp(x[0], x[1], x[2], 0.3)); }},
        Case{"log_sum_exp", {{2, 3, 5}}, [](const Inputs& x) { return ops::log_sum_exp(x[0]); }},
        Case{"softmax", {{3, 7}}, [](const Inputs& x) { return ops::softmax(x[0]); }},
        Case{"masked_softmax", {{2, 5, 5}}, [](const Inputs& x) { return ops::softmax(ops::causal_mask(x[0])); }},
        Case{"masked_softmax_at_a_start",
             {{2, 3, 7}},
             [](const Inputs& x) { return ops::softmax(ops::causal_mask(x[0], 2)); }},
        Case{"log_softmax", {{3, 7}}, [](const Inputs& x) { return ops::log_softmax(x[0]); }},
        Case{"nll_loss", {{5, 7}}, [](const Inputs& x) { return ops::nll_loss(x[0], targets(), ops::kIgnoreIndex); }},
        Case{"rms_norm", {{3, 7}, {7}}, [](const Inputs& x) { return ops::composed::rms_norm(x[0], x[1], 1e-5); }},
        Case{"swiglu", {{3, 5}, {3, 5}}, [](const Inputs& x) { return ops::composed::swiglu(x[0], x[1]); }},
        Case{"rope",
             {{2, 3, 2, 6}},
             [](const Inputs& x) { return ops::composed::rope(x[0], table(3, 6, true), table(3, 6, false)); }},
        Case{"attention",
             {kQ, kKv, kKv},
             [](const Inputs& x) { return ops::composed::attention(x[0], x[1], x[2], 0.3); }},
        Case{"attention_not_causal",
             {kQ, kKv, kKv},
             [](const Inputs& x) { return ops::composed::attention(x[0], x[1], x[2], 0.3, false); }},
        Case{"cross_entropy",
             {{5, 7}},
             [](const Inputs& x) { return ops::composed::cross_entropy(x[0], targets(), ops::kIgnoreIndex); }}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Vision, Gradient,
    ::testing::Values(
        Case{"unfold_patches", {{2, 3, 4, 6}}, [](const Inputs& x) { return ops::unfold_patches(x[0], 2, 3); }},
        Case{"patch_convolution",
             {{2, 3, 4, 6}, {5, 3, 2, 3}, {5}},
             [](const Inputs& x) {
               return ops::linear(ops::unfold_patches(x[0], 2, 3), ops::reshape(x[1], {5, 18}), x[2]);
             }},
        Case{"prepend_token", {{1, 1, 5}, {3, 4, 5}}, [](const Inputs& x) { return ops::prepend_token(x[0], x[1]); }},
        Case{"slice_sequence", {{3, 5, 2}}, [](const Inputs& x) { return ops::slice_sequence(x[0], 1, 3); }},
        Case{"pixel_shuffle", {{2, 4, 6, 3}}, [](const Inputs& x) { return ops::pixel_shuffle(x[0], 2); }},
        Case{"resize_bicubic", {{3, 4, 5}}, [](const Inputs& x) { return ops::resize_bicubic(x[0], 5, 3); }},
        Case{"layer_scale", {{2, 3, 5}, {5}}, [](const Inputs& x) { return ops::mul(x[0], x[1]); }},
        Case{"masked_scatter",
             {{2, 3, 4}, {3, 4}},
             [](const Inputs& x) {
               return ops::masked_scatter(x[0], Tensor::from<std::int64_t>({9, 1, 9, 2, 9, 3}, {2, 3}), 9, x[1]);
             }}),
    [](const auto& info) { return info.param.name; });

// The same draws at every call: a central difference needs one mask.
Tensor dropped(const Tensor& x) {
  RngState::current() = {.key = 7, .next = 0};
  return ops::dropout(x, 0.4);
}

INSTANTIATE_TEST_SUITE_P(
    General, Gradient,
    ::testing::Values(
        Case{"add_broadcast", {{4, 1, 5}, {3, 1}}, [](const Inputs& x) { return x[0] + x[1]; }},
        Case{"sub_broadcast", {{3, 1, 5}, {2, 1}}, [](const Inputs& x) { return x[0] - x[1]; }},
        Case{"mul_broadcast", {{5}, {2, 3, 1}}, [](const Inputs& x) { return x[0] * x[1]; }},
        Case{"div_broadcast", {{2, 3}, {4, 1, 1}}, [](const Inputs& x) { return x[0] / (x[1] * x[1] + 1.0); }},
        Case{"numbers", {{2, 3}}, [](const Inputs& x) { return (2.0 - x[0]) * 3.0 + x[0] / 2.0 - 1.0; }},
        Case{"exp", {{2, 3}}, [](const Inputs& x) { return ops::exp(x[0]); }},
        Case{"sigmoid", {{2, 3}}, [](const Inputs& x) { return ops::sigmoid(x[0]); }},
        Case{"log", {{2, 3}}, [](const Inputs& x) { return ops::log(x[0] * x[0] + 1.0); }},
        Case{"sum", {{2, 3}}, [](const Inputs& x) { return ops::sum(x[0]); }},
        Case{"sum_dim", {{2, 3, 4}}, [](const Inputs& x) { return ops::sum(x[0], 1); }},
        Case{"mean_dim", {{2, 3, 4}}, [](const Inputs& x) { return ops::mean(x[0], -3, true); }},
        Case{"concat",
             {{2, 3, 2}, {2, 1, 2}},
             [](const Inputs& x) {
               return ops::concat({x[0], x[1], x[0]}, -2);
             }},
        Case{"split",
             {{2, 6, 2}},
             [](const Inputs& x) {
               const auto parts = ops::split(x[0], {1, 3, 2}, 1);
               return ops::concat({parts[2], parts[0]}, 1);
             }},
        Case{"transpose", {{2, 3, 4}}, [](const Inputs& x) { return ops::transpose(x[0], 0, -1); }},
        Case{"dropout", {{5, 6}}, [](const Inputs& x) { return dropped(x[0]); }},
        Case{"masked_attention",
             {kFewQ, kKv, kKv, {3, 5}},
             [](const Inputs& x) { return ops::masked_attention(x[0], x[1], x[2], x[3], 0.3); }},
        Case{"embedding_bag_sum",
             {{7, 3}},
             [](const Inputs& x) {
               return ops::embedding_bag(test::ids({6, 0, 6, 2}), {0, 2, 2}, x[0], ops::BagMode::kSum);
             }},
        Case{"embedding_bag_mean",
             {{7, 3}},
             [](const Inputs& x) {
               return ops::embedding_bag(test::ids({6, 0, 6, 2}), {0, 3}, x[0], ops::BagMode::kMean);
             }}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace loom
