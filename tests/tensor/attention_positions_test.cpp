// Promise: attention of some queries to other keys - with a cache of keys, or over parts of the keys - has the results
//          and
//          gradients of attention at once, in both grains; it keeps and costs what it touches.
// World:   one rank; numbers are standard normal.
#include <gmock/gmock.h>

#include "engine/device/recorder.h"
#include "tests/support/issued.h"
#include "tests/tensor/tensors.h"

namespace loom {
namespace {

using ops::AttentionResult;
using test::values;

constexpr double kScale = 0.25;
constexpr std::int64_t kBatch = 2, kSeq = 53, kHeads = 4, kKvHeads = 2, kDim = 16;

Tensor tensor(std::int64_t seq, std::int64_t heads, std::uint64_t stream, DType dtype = DType::kF32) {
  const Shape shape{kBatch, seq, heads, kDim};
  return test::constant(test::normals(shape.numel(), stream), shape, dtype);
}

// Positions [begin, end) of x [B,S,heads,D].
Tensor positions(const Tensor& x, std::int64_t begin, std::int64_t end) {
  const Shape& s = x.shape();
  const test::Doubles all = values(x);
  const std::int64_t row = s[2] * s[3];
  test::Doubles part;
  for (std::int64_t b = 0; b < s[0]; ++b) {
    const auto first = all.begin() + (b * s[1] + begin) * row;
    part.insert(part.end(), first, first + (end - begin) * row);
  }
  return test::constant(part, {s[0], end - begin, s[2], s[3]}, x.dtype());
}

void expect_near(const Tensor& actual, const Tensor& expected, double tolerance) {
  ASSERT_EQ(actual.shape(), expected.shape());
  const test::Doubles a = values(actual), e = values(expected);
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], e[i], tolerance) << "element " << i;
}

using Attention = AttentionResult(const Tensor&, const Tensor&, const Tensor&, double, bool,
                                  std::optional<std::int64_t>);

class AttentionPositions : public ::testing::TestWithParam<Attention*> {
 protected:
  test::OneRank rank;
};

// A prompt of 20, then one token after the other, as generation does it.
TEST_P(AttentionPositions, ACacheOfKeysGivesWhatAllAtOnceGives) {
  Attention& attention = *GetParam();
  const autograd::NoGrad no_grad;
  const Tensor q = tensor(kSeq, kHeads, 1), k = tensor(kSeq, kKvHeads, 2), v = tensor(kSeq, kKvHeads, 3);
  const Tensor whole = attention(q, k, v, kScale, true, {}).out;
  constexpr std::int64_t kPrompt = 20;
  const auto step = [&](std::int64_t begin, std::int64_t end) {
    const Tensor queries = positions(q, begin, end);
    const Tensor expected = positions(whole, begin, end);
    expect_near(attention(queries, positions(k, 0, end), positions(v, 0, end), kScale, true, {}).out, expected, 1e-6);
    // A cache with room for more: what lies behind the queries is not seen.
    expect_near(attention(queries, k, v, kScale, true, begin).out, expected, 1e-6);
  };
  step(0, kPrompt);
  for (std::int64_t at = kPrompt; at < kSeq; ++at) step(at, at + 1);
}

// out = sum_i exp(l_i - l) out_i by recorded operators: the gradients run through out_i and l_i.
TEST_P(AttentionPositions, PartsOfTheKeysJoinWithTheirGradients) {
  Attention& attention = *GetParam();
  constexpr std::int64_t kCut = 21;
  const auto grown = [](const Tensor& x) { return x.detach().set_requires_grad(true); };
  const Tensor all_q = tensor(kSeq, kHeads, 1, DType::kF64), all_k = tensor(kSeq, kKvHeads, 2, DType::kF64),
               all_v = tensor(kSeq, kKvHeads, 3, DType::kF64);
  const Tensor q = grown(positions(all_q, kCut, kSeq)), k = grown(all_k), v = grown(all_v);
  const Tensor weights = tensor(kSeq - kCut, kHeads, 4, DType::kF64);
  const Tensor whole = attention(q, k, v, kScale, true, kCut).out;
  autograd::backward(whole, weights);

  const Tensor part_q = grown(q);
  Tensor part_k[2], part_v[2];
  for (int part = 0; part < 2; ++part) {
    const std::int64_t begin = part == 0 ? 0 : kCut, end = part == 0 ? kCut : kSeq;
    part_k[part] = grown(positions(all_k, begin, end));
    part_v[part] = grown(positions(all_v, begin, end));
  }
  const AttentionResult first = attention(part_q, part_k[0], part_v[0], kScale, false, {});
  const AttentionResult second = attention(part_q, part_k[1], part_v[1], kScale, true, 0);
  const Tensor difference = ops::add(first.log_sum_exp, ops::neg(second.log_sum_exp));
  // exp(l_1 - l) = sigmoid(l_1 - l_2) = (1 + tanh((l_1 - l_2) / 2)) / 2.
  const Tensor half = ops::scale(ops::tanh(ops::scale(difference, 0.5)), 0.5);
  const Tensor middle = Tensor::full(half.shape(), DType::kF64, 0.5);
  const auto share = [](const Tensor& out, const Tensor& factor) {
    return ops::mul_rows(ops::swap_dims_1_2(out), factor);
  };
  const Tensor joined = ops::swap_dims_1_2(
      ops::add(share(first.out, ops::add(middle, half)), share(second.out, ops::add(middle, ops::neg(half)))));
  expect_near(joined, whole, 1e-12);
  autograd::backward(joined, weights);
  expect_near(part_q.grad(), q.grad(), 1e-12);
  for (int part = 0; part < 2; ++part) {
    const std::int64_t begin = part == 0 ? 0 : kCut, end = part == 0 ? kCut : kSeq;
    expect_near(part_k[part].grad(), positions(k.grad(), begin, end), 1e-12);
    expect_near(part_v[part].grad(), positions(v.grad(), begin, end), 1e-12);
  }
}

INSTANTIATE_TEST_SUITE_P(Grains, AttentionPositions,
                         ::testing::Values(ops::attention_with_log_sum_exp, ops::composed::attention_with_log_sum_exp),
                         [](const auto& info) { return info.index == 0 ? "fused" : "composed"; });

// What a ring of ranks computes in a backward of its own: each part against the whole's result.
TEST(AttentionBackward, OfPartsOfTheKeysAddsUpToThatOfTheWhole) {
  test::OneRank rank;
  constexpr std::int64_t kCut = 21;
  const Tensor q = tensor(kSeq - kCut, kHeads, 1, DType::kF64).set_requires_grad(true),
               k = tensor(kSeq, kKvHeads, 2, DType::kF64).set_requires_grad(true),
               v = tensor(kSeq, kKvHeads, 3, DType::kF64).set_requires_grad(true);
  const Tensor dout = tensor(kSeq - kCut, kHeads, 4, DType::kF64);
  const AttentionResult whole = ops::attention_with_log_sum_exp(q, k, v, kScale);
  autograd::backward(whole.out, dout);
  const auto part = [&](std::int64_t begin, std::int64_t end, bool causal) {
    return ops::attention_backward({.q = q,
                                    .k = positions(k, begin, end),
                                    .v = positions(v, begin, end),
                                    .scale = kScale,
                                    .causal = causal,
                                    .start = 0},
                                   whole, dout);
  };
  const ops::AttentionGrads first = part(0, kCut, false), second = part(kCut, kSeq, true);
  EXPECT_FALSE(first.dq.requires_grad());
  expect_near(ops::add(first.dq, second.dq), q.grad(), 1e-12);
  expect_near(first.dk, positions(k.grad(), 0, kCut), 1e-12);
  expect_near(second.dk, positions(k.grad(), kCut, kSeq), 1e-12);
  expect_near(first.dv, positions(v.grad(), 0, kCut), 1e-12);
  expect_near(second.dv, positions(v.grad(), kCut, kSeq), 1e-12);
}

TEST(AttentionWithLogSumExp, KeepsWhatAttentionKeepsAndHasItsBits) {
  const auto run = [](bool with_log_sum_exp) {
    test::OneRank rank;
    const Tensor q = tensor(kSeq, kHeads, 1).set_requires_grad(true), k = tensor(kSeq, kKvHeads, 2);
    const Tensor out =
        with_log_sum_exp ? ops::attention_with_log_sum_exp(q, k, k, kScale).out : ops::attention(q, k, k, kScale);
    const std::int64_t kept = rank.bytes();
    autograd::backward(out, tensor(kSeq, kHeads, 4));
    return std::tuple(kept, rank.stats().peak_bytes, values(out), test::grad(q));
  };
  EXPECT_EQ(run(true), run(false));
}

double flops_of(const std::function<void()>& run, std::string_view kernel) {
  const device::Recorder recorder(device::Device::current());
  run();
  for (const test::Issued& work : test::issued(recorder.recording())) {
    if (work.name == kernel) return work.cost.flops;
  }
  ADD_FAILURE() << kernel << " did not run";
  return 0;
}

// Two products of the visible area: 4 B H D each pair of query and key.
TEST(AttentionCost, IsThatOfTheKeysSeen) {
  test::OneRank rank;
  const auto pairs = [](std::int64_t queries, std::int64_t keys, bool causal, std::optional<std::int64_t> start) {
    const Tensor q = tensor(queries, kHeads, 1), k = tensor(keys, kKvHeads, 2);
    const double flops = flops_of([&] { ops::attention(q, k, k, kScale, causal, start); }, "attention");
    return flops / (4.0 * kBatch * kHeads * kDim);
  };
  EXPECT_EQ(pairs(40, 40, true, {}), 40 * 40 / 2.0);
  EXPECT_EQ(pairs(40, 40, false, {}), 40 * 40);
  EXPECT_EQ(pairs(1, 40, true, {}), 39.5);
  EXPECT_EQ(pairs(10, 40, true, {}), 10 * (30 + 5));
  EXPECT_EQ(pairs(10, 40, true, 5), 10 * (5 + 5));
  EXPECT_EQ(pairs(10, 40, true, 35), 5 * 37.5 + 5 * 40);  // the second half sees every key
  EXPECT_EQ(pairs(10, 40, true, 90), 10 * 40);
  EXPECT_EQ(pairs(10, 40, false, {}), 10 * 40);
}

}  // namespace
}  // namespace loom
