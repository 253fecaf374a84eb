// Promise: the composed grain has the fused one's results and gradients: to 1e-12 in fp64, to 1e-5 in fp32, to a few
//          roundings in 16 bits.
#include <cmath>
#include <gmock/gmock.h>

#include "tests/tensor/tensors.h"

namespace loom {
namespace {

using test::Doubles;
using Inputs = std::vector<Tensor>;
using Function = std::function<Tensor(const Inputs&)>;

struct Pair {
  std::string name;
  std::vector<Shape> shapes;
  Function fused;
  Function composed;
};

// Result, then the gradients of the inputs of sum(w * result).
std::vector<Doubles> run(const Function& f, const std::vector<Shape>& shapes, DType dtype) {
  Inputs inputs;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    inputs.push_back(test::leaf(test::normals(shapes[i].numel(), i), shapes[i], dtype));
  }
  const Tensor y = f(inputs);
  autograd::backward(y, test::constant(test::normals(y.numel(), 99), y.shape(), y.dtype()));
  std::vector<Doubles> found{test::values(y)};
  for (const Tensor& x : inputs) found.push_back(test::grad(x));
  return found;
}

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 1e-12;
    case DType::kF32:
      return 1e-5;
    case DType::kF16:
      return 8 * 0x1p-11;  // half a unit in the last place, some eight roundings
    default:
      return 8 * 0x1p-8;
  }
}

double largest(const Doubles& values) {
  double result = 1;
  for (double v : values) result = std::max(result, std::abs(v));
  return result;
}

class Grains : public ::testing::TestWithParam<Pair> {};

TEST_P(Grains, Agree) {
  test::OneRank rank;
  const Pair& pair = GetParam();
  for (DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    const auto fused = run(pair.fused, pair.shapes, dtype);
    const auto composed = run(pair.composed, pair.shapes, dtype);
    ASSERT_EQ(fused.size(), composed.size());
    for (std::size_t t = 0; t < fused.size(); ++t) {
      ASSERT_EQ(fused[t].size(), composed[t].size());
      const double bound = tolerance(dtype) * largest(fused[t]);
      for (std::size_t e = 0; e < fused[t].size(); ++e) {
        EXPECT_NEAR(fused[t][e], composed[t][e], bound)
            << name(dtype) << (t == 0 ? " result" : " gradient") << ", element " << e;
      }
    }
  }
}

Doubles angles(const Shape& shape, double (*f)(double)) {
  Doubles values;
  for (std::int64_t i = 0; i < shape.numel(); ++i)
    values.push_back(f(static_cast<double>(i / shape[1]) / static_cast<double>(1 + i % (shape[1] / 2))));
  return values;
}

// The tables of a model: in the dtype of what they turn.
Tensor cosines(const Tensor& x) {
  const Shape shape{x.shape()[1], x.shape()[3]};
  return test::constant(angles(shape, std::cos), shape, x.dtype());
}
Tensor sines(const Tensor& x) {
  const Shape shape{x.shape()[1], x.shape()[3]};
  return test::constant(angles(shape, std::sin), shape, x.dtype());
}

Tensor targets(const Tensor& logits) {
  std::vector<std::int64_t> ids;
  for (std::int64_t r = 0; r < logits.shape()[0]; ++r)
    ids.push_back(r % 3 == 1 ? ops::kIgnoreIndex : 7 * r % logits.shape()[1]);
  return test::ids(ids);
}

Pair attention_pair(const std::string& name, std::int64_t batch, std::int64_t seq, std::int64_t heads,
                    std::int64_t kv_heads, std::int64_t dim) {
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  const Shape q{batch, seq, heads, dim}, kv{batch, seq, kv_heads, dim};
  return {name,
          {q, kv, kv},
          [scale](const Inputs& x) { return ops::attention(x[0], x[1], x[2], scale); },
          [scale](const Inputs& x) { return ops::composed::attention(x[0], x[1], x[2], scale); }};
}

// Queries at a position of their own among the keys; the gradient of the log-sum-exp flows too.
Pair cached_attention_pair(const std::string& name, const Shape& q, const Shape& kv, bool causal,
                           std::optional<std::int64_t> start) {
  const auto joined = [](const ops::AttentionResult& result) {
    return ops::mul_rows(ops::swap_dims_1_2(result.out), ops::cast(result.log_sum_exp, result.out.dtype()));
  };
  return {
      name,
      {q, kv, kv},
      [=](const Inputs& x) { return joined(ops::attention_with_log_sum_exp(x[0], x[1], x[2], 0.3, causal, start)); },
      [=](const Inputs& x) {
        return joined(ops::composed::attention_with_log_sum_exp(x[0], x[1], x[2], 0.3, causal, start));
      }};
}

Pair cross_entropy_pair(const std::string& name, const Shape& shape) {
  return {name,
          {shape},
          [](const Inputs& x) { return ops::cross_entropy(x[0], targets(x[0])); },
          [](const Inputs& x) { return ops::composed::cross_entropy(x[0], targets(x[0]), ops::kIgnoreIndex); }};
}

Pair rms_norm_pair(const std::string& name, const Shape& shape) {
  return {name,
          {shape, {shape[-1]}},
          [](const Inputs& x) { return ops::rms_norm(x[0], x[1], 1e-6); },
          [](const Inputs& x) { return ops::composed::rms_norm(x[0], x[1], 1e-6); }};
}

Pair swiglu_pair(const std::string& name, const Shape& shape) {
  return {name,
          {shape, shape},
          [](const Inputs& x) { return ops::swiglu(x[0], x[1]); },
          [](const Inputs& x) { return ops::composed::swiglu(x[0], x[1]); }};
}

Pair rope_pair(const std::string& name, const Shape& shape) {
  return {name,
          {shape},
          [](const Inputs& x) { return ops::rope(x[0], cosines(x[0]), sines(x[0])); },
          [](const Inputs& x) { return ops::composed::rope(x[0], cosines(x[0]), sines(x[0])); }};
}

INSTANTIATE_TEST_SUITE_P(
    Operators, Grains,
    ::testing::Values(rms_norm_pair("rms_norm_odd", {3, 5, 19}), rms_norm_pair("rms_norm_wide", {7, 130}),
                      swiglu_pair("swiglu_odd", {3, 37}), swiglu_pair("swiglu_one", {1, 1}),
                      rope_pair("rope_odd_half", {2, 5, 3, 6}), rope_pair("rope_wide", {1, 3, 2, 64}),
                      attention_pair("attention", 2, 9, 4, 4, 8), attention_pair("attention_grouped", 2, 17, 6, 2, 8),
                      attention_pair("attention_one_kv_head", 1, 33, 5, 1, 12),
                      attention_pair("attention_one_position", 1, 1, 2, 1, 4),
                      cached_attention_pair("attention_of_one_query", {2, 1, 4, 8}, {2, 19, 2, 8}, true, {}),
                      cached_attention_pair("attention_at_a_start", {2, 3, 6, 8}, {2, 17, 2, 8}, true, 5),
                      cached_attention_pair("attention_to_all_keys", {1, 17, 4, 8}, {1, 5, 4, 8}, false, {}),
                      cross_entropy_pair("cross_entropy_odd", {7, 13}),
                      cross_entropy_pair("cross_entropy_wide", {5, 1031})),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace loom
