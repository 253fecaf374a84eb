// Promise: attention within segments gives each segment what it has as a batch of its own, results and gradients: bit
//          by bit in the fused grain, up to rounding in the composed one; and so do rotary tables of their positions.
// World:   one rank; two rows of 53 positions in segments of 1, 20, 32 and 49, 4; numbers are standard normal.
#include <gmock/gmock.h>

#include "engine/core/error.h"
#include "engine/device/recorder.h"
#include "tests/support/files.h"
#include "tests/support/issued.h"
#include "tests/tensor/tensors.h"

namespace loom {
namespace {

using test::Doubles;
using test::values;

constexpr double kScale = 0.25;
constexpr std::int64_t kBatch = 2, kSeq = 53, kHeads = 4, kKvHeads = 2, kDim = 16;

ops::SegmentEnds ends(const std::vector<std::int64_t>& of = {1, 21, 53, 102, 106}) {
  return std::make_shared<const std::vector<std::int64_t>>(of);
}

// Positions [begin, end), counted over all rows, as a batch of one row.
Tensor part(const Tensor& x, std::int64_t begin, std::int64_t end) {
  const std::int64_t row = x.numel() / (kBatch * kSeq);
  const Doubles all = values(x);
  const Doubles taken(all.begin() + begin * row, all.begin() + end * row);
  return test::leaf(taken, {1, end - begin, x.shape()[2], x.shape()[3]}, x.dtype());
}

struct Inputs {
  explicit Inputs(DType dtype) {
    const auto normal = [&](std::int64_t heads, std::uint64_t stream) {
      return test::leaf(test::normals(kBatch * kSeq * heads * kDim, stream), {kBatch, kSeq, heads, kDim}, dtype);
    };
    q = normal(kHeads, 1), k = normal(kKvHeads, 2), v = normal(kKvHeads, 3), dout = normal(kHeads, 4);
  }
  Tensor q, k, v, dout;
};

struct Results {
  Doubles out, dq, dk, dv;
};

using SegmentAttention = Tensor(const Tensor&, const Tensor&, const Tensor&, double, const ops::SegmentEnds&);
using Attention = Tensor(const Tensor&, const Tensor&, const Tensor&, double, bool, std::optional<std::int64_t>);

Results packed(SegmentAttention& attention, const Inputs& x) {
  const Tensor out = attention(x.q, x.k, x.v, kScale, ends());
  autograd::backward(out, x.dout);
  return {values(out), test::grad(x.q), test::grad(x.k), test::grad(x.v)};
}

Results one_by_one(Attention& attention, const Inputs& x) {
  Results all;
  const auto add = [](Doubles& to, const Doubles& from) { to.insert(to.end(), from.begin(), from.end()); };
  std::int64_t begin = 0;
  const ops::SegmentEnds all_ends = ends();
  for (const std::int64_t end : *all_ends) {
    const Tensor q = part(x.q, begin, end), k = part(x.k, begin, end), v = part(x.v, begin, end);
    const Tensor out = attention(q, k, v, kScale, true, {});
    autograd::backward(out, part(x.dout, begin, end));
    add(all.out, values(out));
    add(all.dq, test::grad(q));
    add(all.dk, test::grad(k));
    add(all.dv, test::grad(v));
    begin = end;
  }
  return all;
}

TEST(SegmentAttention, IsBitByBitThatOfEachSegmentAlone) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    test::OneRank rank;
    const Results together = packed(ops::segment_attention, Inputs(dtype));
    const Results alone = one_by_one(ops::attention, Inputs(dtype));
    EXPECT_EQ(together.out, alone.out) << name(dtype);
    EXPECT_EQ(together.dq, alone.dq) << name(dtype);
    EXPECT_EQ(together.dk, alone.dk) << name(dtype);
    EXPECT_EQ(together.dv, alone.dv) << name(dtype);
  }
}

TEST(SegmentAttention, ComposedIsThatOfEachSegmentAlone) {
  test::OneRank rank;
  const Results together = packed(ops::composed::segment_attention, Inputs(DType::kF64));
  const Results alone = one_by_one(ops::composed::attention, Inputs(DType::kF64));
  const auto near = [](double x) { return testing::DoubleNear(x, 1e-13); };
  const auto expect_near = [&](const Doubles& actual, const Doubles& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) ASSERT_THAT(actual[i], near(expected[i])) << i;
  };
  expect_near(together.out, alone.out);
  expect_near(together.dq, alone.dq);
  expect_near(together.dk, alone.dk);
  expect_near(together.dv, alone.dv);
}

TEST(SegmentAttention, OfWholeRowsIsAttention) {
  test::OneRank rank;
  const Inputs x(DType::kF32);
  const Doubles whole = values(ops::attention(x.q, x.k, x.v, kScale));
  EXPECT_EQ(values(ops::segment_attention(x.q, x.k, x.v, kScale, nullptr)), whole);
  EXPECT_EQ(values(ops::segment_attention(x.q, x.k, x.v, kScale, ends({53, 106}))), whole);
}

// Two products of the triangles of the segments: 4 H D each pair.
TEST(SegmentAttention, CostsThePairsWithinSegments) {
  test::OneRank rank;
  const Inputs x(DType::kF32);
  const device::Recorder recorder(device::Device::current());
  ops::segment_attention(x.q, x.k, x.v, kScale, ends());
  double flops = 0;
  for (const test::Issued& work : test::issued(recorder.recording())) {
    if (work.name == "attention") flops += work.cost.flops;
  }
  EXPECT_EQ(flops, 4.0 * kHeads * kDim * 0.5 * (1 + 20 * 20 + 32 * 32 + 49 * 49 + 4 * 4));
}

TEST(SegmentAttention, RefusesEndsThatAreNone) {
  test::OneRank rank;
  const Inputs x(DType::kF32);
  for (SegmentAttention* attention : {&ops::segment_attention, &ops::composed::segment_attention}) {
    const auto refused = [&](const std::vector<std::int64_t>& of) {
      return test::message_of<ModelError>([&] { attention(x.q, x.k, x.v, kScale, ends(of)); });
    };
    EXPECT_THAT(refused({21, 106}), testing::HasSubstr("attention: a segment from position 21 to 106 of 2 rows of 53; "
                                                       "ends ascend, and every row ends a segment"));
    EXPECT_THAT(refused({53, 53, 106}), testing::HasSubstr("a segment from position 53 to 53"));
    EXPECT_THAT(refused({53, 107}), testing::HasSubstr("a segment from position 53 to 107"));
    EXPECT_THAT(refused({53}), testing::HasSubstr("attention: segments end at position 53 of 106"));
    EXPECT_THAT(test::message_of<ModelError>([&] { attention(x.q, part(x.k, 0, 53), x.v, kScale, ends()); }),
                testing::HasSubstr("attention: q fp32 [2, 53, 4, 16] with k"));
  }
}

// Rows 0 and 1 of a table in the order of the positions, for each row of the batch.
TEST(RotaryTables, OfTheirOwnPositionsTurnEachRowAsItsOwnTableDoes) {
  for (const auto rope : {ops::rope, ops::composed::rope}) {
    test::OneRank rank;
    const Tensor x = test::leaf(test::normals(2 * 2 * 3 * 4, 1), {2, 2, 3, 4});
    const Doubles rows[] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
    const auto table = [&](std::initializer_list<int> positions, const Shape& shape) {
      Doubles all;
      for (const int p : positions) all.insert(all.end(), rows[p].begin(), rows[p].end());
      return test::constant(all, shape);
    };
    const Tensor own = rope(x, table({0, 1, 1, 0}, {2, 2, 4}), table({1, 1, 0, 0}, {2, 2, 4}));
    autograd::backward(test::sum(own));
    const auto half = [&](std::int64_t row) {
      const Doubles all = values(x);
      return test::leaf({all.begin() + row * 24, all.begin() + row * 24 + 24}, {1, 2, 3, 4});
    };
    const Tensor first = half(0), second = half(1);
    const Tensor a = rope(first, table({0, 1}, {2, 4}), table({1, 1}, {2, 4}));
    const Tensor b = rope(second, table({1, 0}, {2, 4}), table({0, 0}, {2, 4}));
    autograd::backward(test::sum(a));
    autograd::backward(test::sum(b));
    Doubles expected = values(a), gradients = test::grad(first);
    for (const double value : values(b)) expected.push_back(value);
    for (const double value : test::grad(second)) gradients.push_back(value);
    EXPECT_EQ(values(own), expected);
    EXPECT_EQ(test::grad(x), gradients);
  }
}

}  // namespace
}  // namespace loom
