// Promise: ranks that share sequences attend as one rank with whole ones, and have its gradients: by Ulysses, ring,
//          both and gathered keys, causal and packed, with fewer key/value heads than ranks.
// World:   2 to 8 ranks as threads, fp64.

#include "engine/dist/context_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/comm/mesh.h"
#include "engine/core/error.h"
#include "engine/tensor/ops/general.h"
#include "tests/dist/dist_ranks.h"
#include "tests/dist/operator_cases.h"
#include "tests/support/files.h"

namespace loom::dist {
namespace {

using testing::ElementsAre;

constexpr std::int64_t kRows = 2, kTokens = 16, kHeads = 4, kKvHeads = 2, kDim = 6;
constexpr double kScale = 0.4;

struct Sequences {
  ContextDegrees degrees;
  RingKeys keys = RingKeys::kPassed;
  bool packed = false;
  double spread = 1;  // of q: the scores grow with it
};

Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, double scale, const ops::SegmentEnds& ends) {
  return ends ? ops::segment_attention(q, k, v, scale, ends) : ops::attention(q, k, v, scale);
}

ops::SegmentEnds ends_of(const Sequences& of) {
  if (!of.packed) return nullptr;
  return std::make_shared<const std::vector<std::int64_t>>(std::vector<std::int64_t>{1, 7, 16, 24, 29, 32});
}

test::Doubles values(std::int64_t heads, int seed, double spread = 1) {
  test::Doubles x = test::normals(kRows * kTokens * heads * kDim, seed);
  for (double& value : x) value *= spread;
  return x;
}

// The tokens of `ranges`, of x [kRows, kTokens, heads, kDim].
test::Doubles part_of(const test::Doubles& x, std::int64_t heads, const std::vector<TokenRange>& ranges) {
  test::Doubles part;
  const std::int64_t token = heads * kDim;
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (const auto& [begin, end] : ranges) {
      const auto first = x.begin() + row * kTokens * token;
      part.insert(part.end(), first + begin * token, first + end * token);
    }
  }
  return part;
}

// out, dq, dk, dv.
using Results = std::array<test::Doubles, 4>;

Results run(const Sequences& of, const std::vector<TokenRange>& ranges,
            const std::function<Tensor(const Tensor&, const Tensor&, const Tensor&)>& attention) {
  const std::int64_t tokens = kTokens / of.degrees.ranks();
  const std::int64_t own = ranges.size() == 1 && ranges[0].end - ranges[0].begin == kTokens ? kTokens : tokens;
  const auto leaf = [&](std::int64_t heads, int seed, double spread = 1) {
    return test::leaf(part_of(values(heads, seed, spread), heads, ranges), {kRows, own, heads, kDim});
  };
  const Tensor q = leaf(kHeads, 1, of.spread), k = leaf(kKvHeads, 2), v = leaf(kKvHeads, 3);
  const Tensor out = attention(q, k, v);
  const Tensor weights = test::constant(part_of(values(kHeads, 4), kHeads, ranges), out.shape());
  autograd::backward(ops::sum(ops::mul(out, weights)));
  return {out.to_vector<double>(), test::grad(q), test::grad(k), test::grad(v)};
}

Results on_one_rank(const Sequences& of) {
  const test::OneRank rank;
  return run(of, {{0, kTokens}},
             [&](const Tensor& q, const Tensor& k, const Tensor& v) { return attend(q, k, v, kScale, ends_of(of)); });
}

Context context_of(comm::World& world, const Sequences& of) {
  return dist::context_of(comm::DeviceMesh::create(world, {{"ring", of.degrees.ring}, {"ulysses", of.degrees.ulysses}}),
                          of.keys);
}

double largest_distance(const test::Doubles& a, const test::Doubles& b) {
  double worst = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double d = std::abs(a[i] - b[i]);
    worst = d <= worst ? worst : d;
    if (std::isnan(d)) return INFINITY;
  }
  return worst;
}

void expect_those_of_one_rank(const Sequences& of) {
  const Results whole = on_one_rank(of);
  const std::array<std::int64_t, 4> heads = {kHeads, kHeads, kKvHeads, kKvHeads};
  test::run_dist(of.degrees.ranks(), [&](const Channel&, comm::World& world) {
    const Context context = context_of(world, of);
    const auto ranges = token_ranges(kTokens, of.degrees, context.rank());
    const Results own = run(of, ranges, [&](const Tensor& q, const Tensor& k, const Tensor& v) {
      return context_attention(q, k, v, kScale, ends_of(of), context, attend, "attention");
    });
    for (std::size_t i = 0; i < own.size(); ++i) {
      EXPECT_LE(largest_distance(own[i], part_of(whole[i], heads[i], ranges)), kTolerance * of.spread)
          << "result " << i << " of rank " << world.rank() << ", ring " << of.degrees.ring << " x Ulysses "
          << of.degrees.ulysses << ", keys " << static_cast<int>(of.keys) << ", packed " << of.packed;
    }
  });
}

TEST(RanksThatShareSequences, AttendAsOneRank) {
  for (const bool packed : {false, true}) {
    for (const ContextDegrees degrees : {ContextDegrees{1, 2}, {1, 4}, {2, 1}, {4, 1}, {2, 2}, {4, 2}}) {
      for (const RingKeys keys : {RingKeys::kPassed, RingKeys::kRegathered, RingKeys::kGathered}) {
        if (degrees.ring == 1 && keys != RingKeys::kPassed) continue;
        expect_those_of_one_rank({degrees, keys, packed});
      }
    }
  }
}

TEST(RanksThatShareSequences, JoinScoresOfAnySize) {
  expect_those_of_one_rank({{4, 1}, RingKeys::kPassed, false, 1e4});
  expect_those_of_one_rank({{2, 2}, RingKeys::kGathered, true, 1e4});
}

TEST(TokensOfARank, AreTwoChunksOfTheZigzagCutForUlysses) {
  EXPECT_THAT(token_ranges(32, {4, 1}, 1), ElementsAre(TokenRange{4, 8}, TokenRange{24, 28}));  // chunks 1 and 6
  EXPECT_THAT(token_ranges(32, {4, 1}, 3), ElementsAre(TokenRange{12, 20}));                    // 3 and 4
  EXPECT_THAT(token_ranges(64, {2, 2}, 1), ElementsAre(TokenRange{48, 64}));
  EXPECT_THAT(token_ranges(12, {1, 3}, 2), ElementsAre(TokenRange{8, 12}));
  EXPECT_THAT(token_ranges(24, {2, 3}, 1), ElementsAre(TokenRange{4, 6}, TokenRange{18, 20}));
  EXPECT_EQ(length_unit({4, 1}), 8);
  EXPECT_EQ(length_unit({2, 3}), 12);
  EXPECT_EQ(length_unit({2, 4}), 8);
  EXPECT_EQ(length_unit({1, 4}), 4);
}

TEST(RanksOfUlysses, RefuseHeadsThatTheyCannotShare) {
  test::run_dist(3, [&](const Channel&, comm::World& world) {
    const Sequences of{{1, 3}};
    const Context context = context_of(world, of);
    const Tensor q = Tensor::zeros({1, 4, kHeads, kDim}, DType::kF64), k = Tensor::zeros({1, 4, 2, kDim}, DType::kF64);
    EXPECT_THAT(
        test::message_of<ModelError>(
            [&] { context_attention(q, k, k, kScale, {}, context, attend, "layers.0.self_attn"); }),
        testing::HasSubstr(
            "'layers.0.self_attn' has 4 attention heads, which 3 ranks of Ulysses cannot share evenly; use a number "
            "that divides 4"));
  });
}

}  // namespace
}  // namespace loom::dist
