// Promise: shapes and dtypes that do not fit are mistakes of the model: errors that name the operator, show both sides
//          and say what fits; ids out of range are the data's.
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "tests/tensor/tensors.h"

namespace loom {
namespace {

using ::testing::StrEq;
using ::testing::ThrowsMessage;

Tensor fp32(const Shape& shape) { return Tensor::zeros(shape, DType::kF32); }
Tensor half(const Shape& shape) { return Tensor::zeros(shape, DType::kBF16); }

void expect_refused(const std::function<void()>& call, const std::string& text) {
  EXPECT_THAT(call, ThrowsMessage<ModelError>(StrEq("[rank 0] " + text)));
}

using AttentionFunction = Tensor(const Tensor&, const Tensor&, const Tensor&, double, bool,
                                 std::optional<std::int64_t>);

class OperatorErrors : public ::testing::Test {
 protected:
  test::OneRank rank;
};

TEST_F(OperatorErrors, OfProducts) {
  expect_refused(
      [] {
        ops::linear(fp32({2, 3}), fp32({5, 4}));
      },
      "linear: input fp32 [2, 3] with weight fp32 [5, 4]; a weight [outputs, inputs] takes an input of as many inputs, "
      "in one dtype");
  expect_refused(
      [] {
        ops::linear(fp32({2, 3}), half({5, 3}));
      },
      "linear: input fp32 [2, 3] with weight bf16 [5, 3]; a weight [outputs, inputs] takes an input of as many inputs, "
      "in one dtype");
  expect_refused(
      [] {
        ops::linear(fp32({2, 3}), fp32({3}));
      },
      "linear: input fp32 [2, 3] with weight fp32 [3]; a weight [outputs, inputs] takes an input of as many inputs, in "
      "one dtype");
  expect_refused(
      [] {
        ops::linear(fp32({2, 3}), fp32({5, 3}), fp32({4}));
      },
      "linear: bias fp32 [4] for 5 outputs; a bias is [outputs] in the dtype of the input");
  expect_refused(
      [] {
        ops::linear_kn(fp32({2, 3}), fp32({5, 3}), {});
      },
      "linear: input fp32 [2, 3] with weight fp32 [5, 3]; a weight [inputs, outputs] takes an input of as many inputs, "
      "in one dtype");
  expect_refused(
      [] {
        ops::bmm(fp32({2, 3, 4}), fp32({2, 5, 3}), true);
      },
      "bmm: fp32 [2, 3, 4] with fp32 [2, 5, 3] transposed; [..., m, k] and [..., k, n] (transposed: [..., n, k]) with "
      "the same leading dims are needed, in one dtype");
  expect_refused(
      [] {
        ops::bmm(fp32({2, 3, 4}), fp32({3, 4, 5}), false);
      },
      "bmm: fp32 [2, 3, 4] with fp32 [3, 4, 5]; [..., m, k] and [..., k, n] (transposed: [..., n, k]) with the same "
      "leading dims are needed, in one dtype");
  expect_refused([] { ops::bmm(fp32({4}), fp32({4}), false); },
                 "bmm: fp32 [4] with fp32 [4]; [..., m, k] and [..., k, n] (transposed: [..., n, k]) with the same "
                 "leading dims are needed, in one dtype");
}

TEST_F(OperatorErrors, OfElementWiseOperators) {
  expect_refused(
      [] {
        ops::add(fp32({2, 3}), fp32({2}));
      },
      "add: fp32 [2, 3] with fp32 [2]; aligned at the last dim, sizes need to be equal or 1, in the same dtype");
  expect_refused(
      [] {
        ops::add(fp32({2, 3}), half({3}));
      },
      "add: fp32 [2, 3] with bf16 [3]; aligned at the last dim, sizes need to be equal or 1, in the same dtype");
  expect_refused(
      [] {
        ops::mul(fp32({3}), fp32({2, 2}));
      },
      "mul: fp32 [3] with fp32 [2, 2]; aligned at the last dim, sizes need to be equal or 1, in the same dtype");
  expect_refused(
      [] {
        ops::mul_rows(fp32({2, 3}), fp32({3}));
      },
      "mul_rows: fp32 [2, 3] with factors fp32 [3]; one factor for each row is needed, in the same dtype");
  expect_refused(
      [] {
        ops::swiglu(fp32({2, 3}), fp32({3, 2}));
      },
      "swiglu: fp32 [2, 3] with fp32 [3, 2]; both need one shape and one dtype");
  expect_refused([] { ops::composed::swiglu(fp32({2}), half({2})); },
                 "swiglu: fp32 [2] with bf16 [2]; both need one shape and one dtype");
  expect_refused([] { ops::silu(test::ids({1})); }, "silu takes fp32, bf16, fp16 or fp64, got int64; cast it");
}

TEST_F(OperatorErrors, OfShapeOperators) {
  expect_refused([] { ops::reshape(fp32({2, 3}), {4}); }, "a [2, 3] tensor viewed as [4]; 6 elements are not 4");
  expect_refused(
      [] {
        ops::split_last(fp32({2, 3}), {1, 1});
      },
      "split_last: parts of 2 elements from [2, 3]; the parts need the last dim as their sum");
  expect_refused(
      [] {
        ops::rotate_half(fp32({2, 3}));
      },
      "rotate_half: the last dim of [2, 3] is odd; an even one is needed");
  expect_refused([] { ops::swap_dims_1_2(fp32({2, 3})); }, "swap_dims_1_2: [2, 3] has not 4 dims; reshape it");
  expect_refused(
      [] {
        ops::repeat_kv(fp32({1, 1, 1, 1}), 0);
      },
      "repeat_kv: [1, 1, 1, 1] repeated 0 times; [batch, heads, sequence, head dim] and 1 or more times are needed");
  expect_refused(
      [] {
        ops::causal_mask(fp32({2, 3}), -1);
      },
      "causal_mask: scores [2, 3] with the first query at position -1; [..., queries, keys] and a position of 0 or "
      "more are needed");
}

TEST_F(OperatorErrors, OfNorms) {
  const std::string text =
      "rms_norm: fp32 [2, 3] with weight fp32 [2]; the weight needs one element for each of the last dim, in the same "
      "dtype";
  expect_refused([] { ops::rms_norm(fp32({2, 3}), fp32({2}), 1e-5); }, text);
  expect_refused([] { ops::composed::rms_norm(fp32({2, 3}), fp32({2}), 1e-5); }, text);
  expect_refused(
      [] {
        ops::layer_norm(fp32({2, 3}), fp32({3}), half({3}), 1e-5);
      },
      "layer_norm: fp32 [2, 3] with weight bf16 [3]; the weight needs one element for each of the last dim, in the "
      "same dtype");
}

TEST_F(OperatorErrors, OfAttentionAndItsTables) {
  const std::string heads =
      "attention: q fp32 [1, 2, 3, 4] with k fp32 [1, 2, 2, 4] and v fp32 [1, 2, 2, 4]; q is [batch, queries, heads, "
      "head "
      "dim], k and v are [batch, keys, key/value heads, head dim] with a divisor of the heads, in one dtype";
  expect_refused([] { ops::attention(fp32({1, 2, 3, 4}), fp32({1, 2, 2, 4}), fp32({1, 2, 2, 4}), 1); }, heads);
  expect_refused(
      [] {
        ops::composed::attention(fp32({1, 2, 3, 4}), fp32({1, 2, 2, 4}), fp32({1, 2, 2, 4}), 1);
      },
      heads);
  for (const auto attention : {static_cast<AttentionFunction*>(ops::attention), ops::composed::attention}) {
    const auto of = [attention](std::int64_t queries, std::int64_t keys, std::optional<std::int64_t> start) {
      attention(fp32({1, queries, 2, 4}), fp32({1, keys, 2, 4}), fp32({1, keys, 2, 4}), 1, true, start);
    };
    expect_refused(
        [&] { of(3, 2, {}); },
        "attention: 3 causal queries at the end of 2 keys; give the keys of all queries, or the position of the "
        "first query (start)");
    expect_refused([&] { of(3, 2, -1); }, "attention: the first query is at position -1, allowed are 0 and more");
    expect_refused([&] { of(3, 0, 0); }, "attention: 3 queries without a key; give k and v at least one position");
  }
  const std::string tables =
      "rope: x [1, 2, 3, 4] with tables [2, 2] and [2, 2]; x is [batch, sequence, heads, head dim] with an even head "
      "dim, a table [sequence, head dim] or [batch, sequence, head dim]";
  expect_refused([] { ops::rope(fp32({1, 2, 3, 4}), fp32({2, 2}), fp32({2, 2})); }, tables);
  expect_refused([] { ops::composed::rope(fp32({1, 2, 3, 4}), fp32({2, 2}), fp32({2, 2})); }, tables);
}

TEST_F(OperatorErrors, OfLosses) {
  const std::string text = "cross_entropy: logits [2, 3] with targets [3]; one target for each row of logits is needed";
  expect_refused([] { ops::cross_entropy(fp32({2, 3}), test::ids({0, 1, 2})); }, text);
  expect_refused([] { ops::composed::cross_entropy(fp32({2, 3}), test::ids({0, 1, 2}), -100); }, text);
  const auto out_of_range = ThrowsMessage<ConfigError>(
      StrEq("cross_entropy: target 3 in row 1 is outside the vocabulary [0, 3); fix the labels, or mark the row with "
            "ignore_index -100"));
  EXPECT_THAT([] { ops::cross_entropy(fp32({2, 3}), test::ids({0, 3})); }, out_of_range);
  EXPECT_THAT([] { ops::composed::cross_entropy(fp32({2, 3}), test::ids({0, 3}), -100); }, out_of_range);
}

TEST_F(OperatorErrors, OfEmbeddings) {
  expect_refused([] { ops::embedding(test::ids({0}), fp32({3})); }, "embedding: table [3]; a table is [rows, dim]");
  EXPECT_THROW(ops::embedding(test::ids({3}), fp32({3, 2})), ConfigError);
}

}  // namespace
}  // namespace loom
