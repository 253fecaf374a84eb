// Promise: an operator of a library is an operator of the tape: values and gradients of the built-in, the cost that it
//          states, no kernel in a dry run; what goes wrong names the operator and its library.
// World:   one rank; the example's library (scaled_gelu) and one of test operators.
#include "engine/custom_op/custom_op.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <limits>
#include <thread>

#include "engine/core/error.h"
#include "engine/device/recorder.h"
#include "engine/nn/functional_grad.h"
#include "engine/tensor/ops/general.h"
#include "tests/support/files.h"
#include "tests/support/issued.h"
#include "tests/tensor/tensors.h"

namespace loom::custom {
namespace {

using test::leaf;
using test::message_of;
using test::values;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kGelu = "custom operator 'scaled_gelu' of " SCALED_GELU;

Tensor gelu(const Tensor& x, double scale) { return custom_op("scaled_gelu", {x}, {scale}).front(); }

class CustomOp : public ::testing::Test {
 protected:
  CustomOp() { load_custom_ops(std::filesystem::path(SCALED_GELU)); }

  test::OneRank rank_;
};

TEST_F(CustomOp, AgreesWithTheBuiltIn) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const Tensor x = leaf(test::normals(1000, 1), {10, 100}, dtype),
                 same = leaf(test::normals(1000, 1), {10, 100}, dtype);
    const Tensor weight = test::constant(test::normals(1000, 2), {10, 100}, dtype);
    const Tensor y = gelu(x, 1.7), expected = ops::scale(ops::gelu(same, ops::Gelu::kTanh), 1.7);
    EXPECT_EQ(y.shape(), (Shape{10, 100}));
    EXPECT_THAT(values(y), ::testing::Pointwise(::testing::DoubleNear(1e-6), values(expected)));
    autograd::backward(ops::sum(y * weight));
    autograd::backward(ops::sum(expected * weight));
    EXPECT_THAT(test::grad(x), ::testing::Pointwise(::testing::DoubleNear(2e-6), test::grad(same)));
  }
}

TEST_F(CustomOp, HasTheDerivativeOfItsResult) {  // central differences: about 1e-9
  const Tensor x = test::constant(test::normals(20, 1), {20});
  const auto f = [](const Tensor& input) { return ops::sum(gelu(input, -0.6)); };
  const test::Doubles gradient = values(nn::grad(f)(x).gradients.tensor());
  for (std::size_t e = 0; e < gradient.size(); ++e) {
    double* const element = x.data<double>() + e;
    const double value = *element;
    *element = value + 1e-5;
    const double above = f(x).item();
    *element = value - 1e-5;
    const double below = f(x).item();
    *element = value;
    EXPECT_NEAR(gradient[e], (above - below) / 2e-5, 1e-8);
  }
}

TEST_F(CustomOp, IsPricedAsItSays) {
  device::Recorder recorder(rank_.device());
  autograd::backward(ops::sum(gelu(leaf({1, 2, 3}), 2)));
  std::vector<std::string> found;
  for (const test::Issued& one : test::issued(recorder.recording())) {
    if (!one.name.starts_with("custom.")) continue;
    found.push_back(fmt::format("{} {} {} {} {}", one.stream, one.name, one.cost.flops, one.cost.read_bytes,
                                one.cost.written_bytes));
  }
  EXPECT_THAT(found, ElementsAre("compute custom.scaled_gelu 33 24 24", "compute custom.scaled_gelu_grad 63 48 24"));
}

// "throws" computes nothing else: its kernel is not called.
TEST(CustomOpInADryRun, CallsNoKernelAndHasShapesAndCosts) {
  test::OneRank rank({.dry_run = true});
  load_custom_ops(std::filesystem::path(TEST_OPERATORS));
  load_custom_ops(std::filesystem::path(SCALED_GELU));
  const Tensor x = Tensor::zeros({3, 4}, DType::kF32);
  EXPECT_EQ(custom_op("throws", {x}).front().shape(), (Shape{3, 4}));
  const std::int64_t before = rank.bytes();
  device::Recorder recorder(rank.device());
  const Tensor y = gelu(x.detach().set_requires_grad(true), 1);
  EXPECT_GT(rank.bytes(), before);
  autograd::backward(ops::sum(y));
  std::vector<double> flops;
  for (const test::Issued& one : test::issued(recorder.recording())) {
    if (one.name.starts_with("custom.")) flops.push_back(one.cost.flops);
  }
  EXPECT_THAT(flops, ElementsAre(11 * 12, 21 * 12));
}

TEST_F(CustomOp, SavesWhatItsBackwardReads) {
  load_custom_ops(std::filesystem::path(TEST_OPERATORS));
  const Tensor x = leaf({1, 2, 3}, {3}, DType::kF32), y = leaf({5, 7, 2}, {3}, DType::kF32);
  const std::vector<Tensor> outputs = custom_op("product", {x, y});
  ASSERT_EQ(outputs.size(), 2U);
  EXPECT_THAT(values(outputs[0]), ElementsAre(5, 14, 6));
  EXPECT_EQ(outputs[1].dtype(), DType::kI64);
  EXPECT_EQ(outputs[1].item(), 1);
  EXPECT_TRUE(outputs[0].requires_grad());
  EXPECT_FALSE(outputs[1].requires_grad());
  autograd::backward(ops::sum(outputs[0]));
  EXPECT_THAT(test::grad(x), ElementsAre(5, 7, 2));
  EXPECT_THAT(test::grad(y), ElementsAre(1, 2, 3));
}

TEST_F(CustomOp, ComputesOnlyTheGradientsThatAreNeeded) {
  load_custom_ops(std::filesystem::path(TEST_OPERATORS));
  const Tensor x = leaf({1, 2, 3}, {3}, DType::kF32), y = test::constant({5, 7, 2}, {3}, DType::kF32);
  autograd::backward(ops::sum(custom_op("product", {x, y})[0]));
  EXPECT_THAT(test::grad(x), ElementsAre(5, 7, 2));
  EXPECT_FALSE(y.grad().defined());
}

TEST_F(CustomOp, CountsAProductAsAProduct) {
  load_custom_ops(std::filesystem::path(TEST_OPERATORS));
  device::Recorder recorder(rank_.device());
  const Tensor x = test::constant({1, 2, 3}, {3}, DType::kF32);
  custom_op("product", {x, x});
  const device::Cost cost = test::issued(recorder.recording()).back().cost;
  EXPECT_EQ(cost.unit, device::Unit::kMatrix);
  EXPECT_EQ(fmt::format("{} {} {} {}", cost.batch, cost.m, cost.n, cost.k), "1 3 2 3");
}

TEST_F(CustomOp, WithoutBackwardIsRefusedWhereAGradientIsNeeded) {
  load_custom_ops(std::filesystem::path(TEST_OPERATORS));
  const Tensor w = leaf({1, 2}, {2}, DType::kF32);
  EXPECT_EQ(message_of<ModelError>([&] { custom_op("twice", {w}); }),
            "[rank 0] custom operator 'twice' of " TEST_OPERATORS
            ": it has no backward, and an input requires a gradient; give the operator one, or call it under "
            "autograd::NoGrad");
  EXPECT_THAT(values(custom_op("twice", {w.detach()}).front()), ElementsAre(2, 4));
  const autograd::NoGrad no_grad;
  EXPECT_THAT(values(custom_op("twice", {w}).front()), ElementsAre(2, 4));
}

TEST_F(CustomOp, SaysWhatDoesNotFitItsSchema) {
  const Tensor x = test::constant({1, 2});
  const auto message = [](const auto& run) { return message_of<ModelError>(run); };
  EXPECT_EQ(message([&] {
              custom_op("scaled_gelu", {x, x}, {1});
            }),
            "[rank 0] " + kGelu + ": 2 inputs, allowed are 1; give as many");
  EXPECT_THAT(message([&] { custom_op("scaled_gelu", {x}); }), HasSubstr("0 attributes, allowed are 1"));
  EXPECT_THAT(message([&] { custom_op("scaled_gelu", {Tensor{}}, {1}); }), HasSubstr("input 0 is an undefined tensor"));
  EXPECT_THAT(message([&] { gelu(test::ids({1}), 1); }),
              HasSubstr("input 0 is int64, allowed are fp32, fp64; cast it"));
  EXPECT_THAT(message([&] {
                gelu(x.view({1, 1, 1, 1, 1, 1, 1, 1, 2}), 1);
              }),
              HasSubstr("input 0 has 9 dims, allowed are 0 to 8"));
  EXPECT_EQ(message([&] { gelu(x, std::numeric_limits<double>::infinity()); }),
            "[rank 0] " + kGelu + ": shape failed with status 1: the scale is not finite; give a number");
  EXPECT_EQ(message_of<ConfigError>([&] { custom_op("gelu", {x}); }),
            "custom operator 'gelu' is not loaded; loaded are scaled_gelu; give its library to --custom-op-library, or "
            "call load_custom_ops()");
}

TEST_F(CustomOp, SaysWhatItsFunctionsDoWrong) {
  load_custom_ops(std::filesystem::path(TEST_OPERATORS));
  const Tensor x = test::constant({1, 2}, {2}, DType::kF32);
  const std::pair<std::string_view, std::string> texts[] = {
      {"fails", "forward failed with status 7: the\\x1b[31m kernel is out of order"},
      {"fails_in_silence", "forward failed with status 3: it gave no message"},
      {"guarded", "forward failed with status 1: thrown inside"},
      {"throws", "forward threw an exception through its C interface"},
      {"many_dims", "its shape rule gives output 0 9 dims, allowed are 0 to 8"},
      {"bad_dtype", "its shape rule gives output 0 dtype 99, allowed are 0 to 9"},
      {"negative_size", "its shape rule gives output 0 a dim of -1, allowed are 0 and more"},
      {"huge", "more than 128 TiB"},
      {"negative_cost", "cost gives 0 flops, -1 bytes read and 0 written, allowed are numbers of 0 and more"},
      {"bad_unit", "cost gives unit 5, allowed are 0 and 1"},
      {"no_product", "cost gives 0 products of [0, 0] x [0, 0]"}};
  for (const auto& [name, text] : texts) {
    const std::string message = message_of<ModelError>([&, op = name] { custom_op(op, {x}); });
    EXPECT_THAT(message, HasSubstr(fmt::format("custom operator '{}' of " TEST_OPERATORS ": ", name)));
    EXPECT_THAT(message, HasSubstr(text));
  }
  const Tensor y = custom_op("backward_fails", {leaf({1}, {1}, DType::kF32)}).front();
  EXPECT_THAT(message_of<ModelError>([&] { autograd::backward(y); }),
              HasSubstr("backward failed with status 1: no gradient today"));
}

TEST_F(CustomOp, IsLoadedForItsRankAlone) {
  load_custom_ops(std::filesystem::path(SCALED_GELU));  // again: nothing changes
  std::thread([] {
    test::OneRank other;
    EXPECT_THAT(message_of<ConfigError>([&] { gelu(test::constant({1}), 1); }), HasSubstr("loaded are none"));
    load_custom_ops(other.context(), open_libraries({SCALED_GELU}));
    EXPECT_NEAR(gelu(test::constant({0.5}), 2).item(), 0.69142, 1e-4);  // 2 * 0.34571
  }).join();
}

}  // namespace
}  // namespace loom::custom
