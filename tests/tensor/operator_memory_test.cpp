// Promise: operators keep for backward what their contract says, to the byte.
#include <gmock/gmock.h>

#include "tests/tensor/tensors.h"

namespace loom {
namespace {

using test::leaf;

std::int64_t rounded(std::int64_t bytes) { return (bytes + 511) / 512 * 512; }

Tensor zeros(const Shape& shape, DType dtype = DType::kF32) { return Tensor::zeros(shape, dtype); }
Tensor zero_leaf(const Shape& shape, DType dtype = DType::kF32) { return zeros(shape, dtype).set_requires_grad(true); }

// Bytes that stay while the result of `f` and its graph are held.
std::int64_t kept_by(test::OneRank& rank, const std::function<Tensor()>& f) {
  const std::int64_t before = rank.bytes();
  const Tensor result = f();
  return rank.bytes() - before;
}

TEST(FusedAttention, KeepsItsResultAndOneNumberARowAndHead) {  // linear in S
  test::OneRank rank;
  constexpr std::int64_t kBatch = 2, kHeads = 4, kKvHeads = 2, kDim = 16;
  for (std::int64_t seq : {64, 128, 256}) {
    const Tensor q = zero_leaf({kBatch, seq, kHeads, kDim}), k = zero_leaf({kBatch, seq, kKvHeads, kDim}),
                 v = zero_leaf(k.shape());
    rank.device().memory().reset_peaks();
    const std::int64_t before = rank.bytes();
    const Tensor out = ops::attention(q, k, v, 0.25);
    const std::int64_t out_bytes = rounded(4 * kBatch * seq * kHeads * kDim);
    const std::int64_t lse_bytes = rounded(4 * kBatch * seq * kHeads);
    EXPECT_EQ(rank.bytes() - before, out_bytes + lse_bytes);
    EXPECT_EQ(rank.stats().peak_bytes - before, out_bytes + lse_bytes);
    autograd::backward(out, zeros(out.shape()));
    EXPECT_EQ(rank.stats().peak_bytes - before, 3 * out_bytes + lse_bytes + 2 * rounded(k.nbytes()))
        << "backward: the gradients of out, q, k and v beside what is kept";
  }
}

TEST(ComposedAttention, KeepsTheScoresAsEagerPyTorchDoes) {
  test::OneRank rank;
  constexpr std::int64_t kBatch = 2, kSeq = 32, kHeads = 4, kKvHeads = 2, kDim = 16;
  const Shape q_shape{kBatch, kSeq, kHeads, kDim}, kv_shape{kBatch, kSeq, kKvHeads, kDim};
  const std::int64_t q_bytes = 2 * q_shape.numel();  // bf16
  const std::int64_t scores = kBatch * kHeads * kSeq * kSeq;
  const Tensor q = zero_leaf(q_shape, DType::kBF16), k = zero_leaf(kv_shape, DType::kBF16),
               v = zero_leaf(kv_shape, DType::kBF16);
  // Queries, repeated keys and values; the softmax in fp32 and rounded; the result.
  EXPECT_EQ(kept_by(rank, [&] { return ops::composed::attention(q, k, v, 0.25); }),
            3 * rounded(q_bytes) + rounded(4 * scores) + rounded(2 * scores) + rounded(q_bytes));
}

TEST(FusedRmsNorm, KeepsOneNumberARow) {
  test::OneRank rank;
  const Tensor x = zero_leaf({10, 256}, DType::kBF16), w = zero_leaf({256}, DType::kBF16);
  EXPECT_EQ(kept_by(rank, [&] { return ops::rms_norm(x, w, 1e-5); }), rounded(2 * 2560) + rounded(4 * 10));
}

TEST(ComposedRmsNorm, KeepsTheFp32InputAndTheRoundedProduct) {
  test::OneRank rank;
  const Tensor x = zero_leaf({10, 256}, DType::kBF16), w = zero_leaf({256}, DType::kBF16);
  // The input in fp32, 1 / rms, the normalised input in bf16; the result.
  EXPECT_EQ(kept_by(rank, [&] { return ops::composed::rms_norm(x, w, 1e-5); }),
            rounded(4 * 2560) + rounded(4 * 10) + rounded(2 * 2560) + rounded(2 * 2560));
}

TEST(Swiglu, FusedKeepsItsInputsComposedAlsoTheSilu) {
  test::OneRank rank;
  const Tensor gate = zero_leaf({8, 512}), up = zero_leaf({8, 512});
  EXPECT_EQ(kept_by(rank, [&] { return ops::swiglu(gate, up); }), rounded(4 * 4096));
  EXPECT_EQ(kept_by(rank, [&] { return ops::composed::swiglu(gate, up); }), 2 * rounded(4 * 4096));
}

TEST(Rope, KeepsNothingButItsTables) {
  test::OneRank rank;
  const Tensor x = zero_leaf({2, 8, 4, 32}), cos = zeros({8, 32}), sin = zeros({8, 32});
  EXPECT_EQ(kept_by(rank, [&] { return ops::rope(x, cos, sin); }), rounded(4 * 2048));
  EXPECT_EQ(kept_by(rank, [&] { return ops::composed::rope(x, cos, sin); }), rounded(4 * 2048));
}

class CrossEntropyMemory : public ::testing::Test {
 protected:
  static constexpr std::int64_t kRows = 16, kVocab = 1024;
  static constexpr std::int64_t kLogitsBytes = 4 * kRows * kVocab;

  Tensor logits() { return ops::scale(weights, 1.0); }
  // Peak above the present while backward runs.
  std::int64_t backward_bytes(const Tensor& loss) {
    const std::int64_t before = rank.bytes();
    rank.device().memory().reset_peaks();
    autograd::backward(loss);
    return rank.stats().peak_bytes - before;
  }

  test::OneRank rank;
  Tensor weights = leaf(test::normals(kRows * kVocab, 5), {kRows, kVocab}, DType::kF32);
  Tensor targets = test::ids(std::vector<std::int64_t>(kRows, 3));
};

// Backward makes the gradient of the scaled weights when the rows' statistics are gone; the gradient of the logits is
// written over the logits, or made beside it.
TEST_F(CrossEntropyMemory, BackwardReusesTheLogitsWhenNobodyElseHoldsThem) {
  const Tensor loss = ops::cross_entropy(logits(), targets);
  EXPECT_EQ(backward_bytes(loss), kLogitsBytes - rounded(4 * kRows));
}

TEST_F(CrossEntropyMemory, BackwardLeavesLogitsAloneThatSomebodyHolds) {
  const Tensor held = logits();
  const auto before = test::values(held);
  const Tensor loss = ops::cross_entropy(held, targets);
  EXPECT_EQ(backward_bytes(loss), 2 * kLogitsBytes - rounded(4 * kRows));
  EXPECT_EQ(test::values(held), before);
}

TEST_F(CrossEntropyMemory, BackwardLeavesLogitsAloneThatAViewSees) {
  Tensor row = logits();
  const Tensor loss = ops::cross_entropy(row, targets);
  row = row.rows(0, 1);
  const auto before = test::values(row);
  EXPECT_EQ(backward_bytes(loss), 2 * kLogitsBytes - rounded(4 * kRows));
  EXPECT_EQ(test::values(row), before);
}

TEST_F(CrossEntropyMemory, ReuseGivesTheSameGradient) {
  Tensor held = logits();
  autograd::backward(ops::cross_entropy(held, targets));
  const auto expected = test::grad(weights);
  weights.set_grad({});
  held = {};
  const Tensor loss = ops::cross_entropy(logits(), targets);
  autograd::backward(loss);
  EXPECT_EQ(test::grad(weights), expected);
}

TEST_F(CrossEntropyMemory, LogitsSavedByAnotherOperatorAreNotOverwritten) {
  const auto loss_of = [&](const Tensor& all) {
    const Tensor squares = test::sum(ops::mul(all, all));
    return ops::add(squares, ops::cross_entropy(all, targets));  // recorded last: its backward runs first
  };
  Tensor held = logits();
  autograd::backward(loss_of(held));
  const auto expected = test::grad(weights);
  weights.set_grad({});
  held = {};
  const Tensor loss = loss_of(logits());
  autograd::backward(loss);
  EXPECT_EQ(test::grad(weights), expected);
}

TEST(DryRun, HasTheAccountsOfARealRun) {
  std::vector<device::MemStats> found;
  for (bool dry : {false, true}) {
    test::OneRank rank({.dry_run = dry});
    const Tensor x = zero_leaf({4, 8, 4, 16}), w = zero_leaf({16}), table = zeros({8, 16});
    for (bool fused : {true, false}) {
      Tensor h = fused ? ops::rms_norm(x, w, 1e-5) : ops::composed::rms_norm(x, w, 1e-5);
      h = fused ? ops::rope(h, table, table) : ops::composed::rope(h, table, table);
      h = fused ? ops::attention(h, h, h, 0.25) : ops::composed::attention(h, h, h, 0.25);
      h = fused ? ops::swiglu(h, h) : ops::composed::swiglu(h, h);
      const Tensor logits = ops::reshape(h, {128, 16});
      const Tensor targets = Tensor::zeros({128}, DType::kI64);
      autograd::backward(fused ? ops::cross_entropy(logits, targets)
                               : ops::composed::cross_entropy(logits, targets, -100));
    }
    found.push_back(rank.stats());
  }
  EXPECT_EQ(found[0].peak_bytes, found[1].peak_bytes);
  EXPECT_EQ(found[0].total_bytes, found[1].total_bytes);
  EXPECT_EQ(found[0].by_category_at_peak, found[1].by_category_at_peak);
}

}  // namespace
}  // namespace loom
