// Promise: every operator that takes a parameter asks its guard, with gradients or without, and before its shape is
//          refused.
#include <functional>
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/tensor/ops/composed.h"
#include "tests/tensor/tensors.h"

namespace loom {
namespace {

class Refusing final : public autograd::UseGuard {
 public:
  void check(std::string_view op) const override { config_error("not in {}", op); }
};

Tensor guarded(const Shape& shape) {
  Tensor tensor = Tensor::full(shape, DType::kF32, 1).set_requires_grad(true);
  tensor.meta_data().guard = std::make_shared<Refusing>();
  return tensor;
}

Tensor x() { return Tensor::full({2, 4}, DType::kF32, 1); }
Tensor ids() { return Tensor::from(std::vector<std::int32_t>{0, 1}, {2}); }

struct Operator {
  std::string name;
  std::function<Tensor(const Tensor& parameter)> run;
  Shape right, wrong;  // a shard of the wrong one is what remains of the right one on two ranks, as a rule
};

void PrintTo(const Operator& op, std::ostream* out) { *out << op.name; }

class Operators : public ::testing::TestWithParam<Operator> {};

TEST_P(Operators, AskTheGuard) {
  test::OneRank rank;
  const auto refuses = ::testing::ThrowsMessage<ConfigError>(::testing::StartsWith("not in "));
  const Operator& op = GetParam();
  EXPECT_THAT([&] { op.run(guarded(op.right)); }, refuses);
  EXPECT_THAT([&] { op.run(guarded(op.wrong)); }, refuses);
  const autograd::NoGrad no_grad;
  EXPECT_THAT([&] { op.run(guarded(op.right)); }, refuses);
}

INSTANTIATE_TEST_SUITE_P(
    ThatTakeParameters, Operators,
    ::testing::Values(
        Operator{"linear", [](const Tensor& w) { return ops::linear(x(), w); }, {6, 4}, {6, 2}},
        Operator{"linear_bias",
                 [](const Tensor& b) {
                   return ops::linear(x(), Tensor::full({6, 4}, DType::kF32, 1), b);
                 },
                 {6},
                 {3}},
        Operator{"linear_kn",
                 [](const Tensor& w) { return ops::linear_kn(x(), w, Tensor::full({6}, DType::kF32, 1)); },
                 {4, 6},
                 {2, 6}},
        Operator{"embedding", [](const Tensor& t) { return ops::embedding(ids(), t); }, {6, 4}, {3, 4}},
        Operator{"add", [](const Tensor& b) { return ops::add(x(), b); }, {4}, {2}},
        Operator{"mul", [](const Tensor& b) { return ops::mul(x(), b); }, {4}, {2}},
        Operator{"rms_norm", [](const Tensor& w) { return ops::rms_norm(x(), w, 1e-6); }, {4}, {2}},
        Operator{"layer_norm",
                 [](const Tensor& w) { return ops::layer_norm(x(), w, Tensor::full({4}, DType::kF32, 0), 1e-6); },
                 {4},
                 {2}},
        Operator{"composed_rms_norm", [](const Tensor& w) { return ops::composed::rms_norm(x(), w, 1e-6); }, {4}, {2}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace loom
