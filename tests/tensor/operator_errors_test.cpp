// Promise: shapes and dtypes that do not fit are errors that name the operator and show both sides; ids out of range
//          are the user's.
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "tests/tensor/tensors.h"

namespace loom {
namespace {

using ::testing::StrEq;
using ::testing::ThrowsMessage;

Tensor fp32(const Shape& shape) { return Tensor::zeros(shape, DType::kF32); }
Tensor half(const Shape& shape) { return Tensor::zeros(shape, DType::kBF16); }

void expect_internal(const std::function<void()>& call, const std::string& text) {
  EXPECT_THAT(call, ThrowsMessage<InvariantError>(StrEq("[rank 0] internal: " + text)));
}

class OperatorErrors : public ::testing::Test {
 protected:
  test::OneRank rank;
};

TEST_F(OperatorErrors, OfProducts) {
  expect_internal([] { ops::linear(fp32({2, 3}), fp32({5, 4})); }, "linear: input fp32 [2, 3] with weight fp32 [5, 4]");
  expect_internal([] { ops::linear(fp32({2, 3}), half({5, 3})); }, "linear: input fp32 [2, 3] with weight bf16 [5, 3]");
  expect_internal([] { ops::linear(fp32({2, 3}), fp32({3})); }, "linear: input fp32 [2, 3] with weight fp32 [3]");
  expect_internal([] { ops::linear(fp32({2, 3}), fp32({5, 3}), fp32({4})); }, "linear: bias fp32 [4] for 5 outputs");
  expect_internal(
      [] {
        ops::linear_kn(fp32({2, 3}), fp32({5, 3}), {});
      },
      "linear: input fp32 [2, 3] with weight fp32 [5, 3]");
  expect_internal(
      [] {
        ops::bmm(fp32({2, 3, 4}), fp32({2, 5, 3}), true);
      },
      "bmm: fp32 [2, 3, 4] with fp32 [2, 5, 3] transposed");
  expect_internal([] { ops::bmm(fp32({2, 3, 4}), fp32({3, 4, 5}), false); }, "bmm: fp32 [2, 3, 4] with fp32 [3, 4, 5]");
  expect_internal([] { ops::bmm(fp32({4}), fp32({4}), false); }, "bmm: fp32 [4] with fp32 [4]");
}

TEST_F(OperatorErrors, OfElementWiseOperators) {
  expect_internal([] { ops::add(fp32({2, 3}), fp32({2})); }, "add: fp32 [2, 3] with fp32 [2]");
  expect_internal([] { ops::add(fp32({2, 3}), half({3})); }, "add: fp32 [2, 3] with bf16 [3]");
  expect_internal([] { ops::mul(fp32({3}), fp32({2, 3})); }, "mul: fp32 [3] with fp32 [2, 3]");
  expect_internal([] { ops::mul_rows(fp32({2, 3}), fp32({3})); }, "mul_rows: fp32 [2, 3] with factors fp32 [3]");
  expect_internal([] { ops::swiglu(fp32({2, 3}), fp32({3, 2})); }, "swiglu: fp32 [2, 3] with fp32 [3, 2]");
  expect_internal([] { ops::composed::swiglu(fp32({2}), half({2})); }, "swiglu: fp32 [2] with bf16 [2]");
  expect_internal([] { ops::silu(test::ids({1})); }, "silu takes fp32, bf16, fp16 or fp64, got int64");
}

TEST_F(OperatorErrors, OfShapeOperators) {
  expect_internal([] { ops::reshape(fp32({2, 3}), {4}); }, "a [2, 3] tensor viewed as [4]");
  expect_internal([] { ops::split_last(fp32({2, 3}), {1, 1}); }, "split_last: parts of 2 elements from [2, 3]");
  expect_internal([] { ops::rotate_half(fp32({2, 3})); }, "rotate_half: the last dim of [2, 3] is odd");
  expect_internal([] { ops::swap_dims_1_2(fp32({2, 3})); }, "swap_dims_1_2: [2, 3] has not 4 dims");
  expect_internal([] { ops::repeat_kv(fp32({1, 1, 1, 1}), 0); }, "repeat_kv: [1, 1, 1, 1] repeated 0 times");
  expect_internal([] { ops::causal_mask(fp32({2, 3})); }, "causal_mask: scores [2, 3] are not square");
}

TEST_F(OperatorErrors, OfNorms) {
  const std::string text = "rms_norm: fp32 [2, 3] with weight fp32 [2]";
  expect_internal([] { ops::rms_norm(fp32({2, 3}), fp32({2}), 1e-5); }, text);
  expect_internal([] { ops::composed::rms_norm(fp32({2, 3}), fp32({2}), 1e-5); }, text);
  expect_internal(
      [] {
        ops::layer_norm(fp32({2, 3}), fp32({3}), half({3}), 1e-5);
      },
      "layer_norm: fp32 [2, 3] with weight bf16 [3]");
}

TEST_F(OperatorErrors, OfAttentionAndItsTables) {
  const std::string heads = "attention: q [1, 2, 3, 4] with k [1, 2, 2, 4] and v [1, 2, 2, 4]";
  expect_internal([] { ops::attention(fp32({1, 2, 3, 4}), fp32({1, 2, 2, 4}), fp32({1, 2, 2, 4}), 1); }, heads);
  expect_internal(
      [] {
        ops::composed::attention(fp32({1, 2, 3, 4}), fp32({1, 2, 2, 4}), fp32({1, 2, 2, 4}), 1);
      },
      heads);
  const std::string tables = "rope: x [1, 2, 3, 4] with tables [2, 2] and [2, 2]";
  expect_internal([] { ops::rope(fp32({1, 2, 3, 4}), fp32({2, 2}), fp32({2, 2})); }, tables);
  expect_internal([] { ops::composed::rope(fp32({1, 2, 3, 4}), fp32({2, 2}), fp32({2, 2})); }, tables);
}

TEST_F(OperatorErrors, OfLosses) {
  const std::string text = "cross_entropy: logits [2, 3] with targets [3]";
  expect_internal([] { ops::cross_entropy(fp32({2, 3}), test::ids({0, 1, 2})); }, text);
  expect_internal([] { ops::composed::cross_entropy(fp32({2, 3}), test::ids({0, 1, 2}), -100); }, text);
  const auto out_of_range = ThrowsMessage<ConfigError>(
      StrEq("cross_entropy: target 3 in row 1 is outside the vocabulary [0, 3); fix the labels, or mark the row with "
            "ignore_index -100"));
  EXPECT_THAT([] { ops::cross_entropy(fp32({2, 3}), test::ids({0, 3})); }, out_of_range);
  EXPECT_THAT([] { ops::composed::cross_entropy(fp32({2, 3}), test::ids({0, 3}), -100); }, out_of_range);
}

TEST_F(OperatorErrors, OfEmbeddings) {
  expect_internal([] { ops::embedding(test::ids({0}), fp32({3})); }, "embedding: table [3]");
  EXPECT_THROW(ops::embedding(test::ids({3}), fp32({3, 2})), ConfigError);
}

}  // namespace
}  // namespace loom
