// Promise: gradients are divided where PyTorch FSDP2 (2.11) divides them, once in all.
// World:   none for the plan; 1, 2 or 4 ranks as threads for what it comes to.
#include <gtest/gtest.h>

#include "sharding/fsdp/reduce.h"
#include "tests/support/toy_models.h"
#include "tests/support/world.h"

namespace loom::sharding {
namespace {

using comm::ReduceKind;
using test::run_world;

struct Row {
  const char* what;
  DType dtype;
  int shard;
  int replicate;
  std::optional<double> factor;
  bool force_sum;
  // what is to be
  double pre;
  ReduceKind scatter;
  double scatter_factor;
  ReduceKind all_reduce;
  double post;
};

void PrintTo(const Row& row, std::ostream* out) { *out << row.what; }

class ReductionPlan : public ::testing::TestWithParam<Row> {};

TEST_P(ReductionPlan, IsTheTableRow) {
  const Row& row = GetParam();
  const ReducePlan plan = plan_reduction(row.dtype, row.shard, row.replicate, row.factor, row.force_sum);
  EXPECT_EQ(plan.pre_divide, row.pre);
  EXPECT_EQ(plan.reduce_scatter.kind, row.scatter);
  EXPECT_EQ(plan.reduce_scatter.factor, row.scatter_factor);
  EXPECT_EQ(plan.all_reduce.kind, row.all_reduce);
  EXPECT_EQ(plan.post_divide, row.post);
}

constexpr auto kNone = std::nullopt;
constexpr auto kSum = ReduceKind::kSum;
constexpr auto kAvg = ReduceKind::kAvg;
constexpr auto kPremul = ReduceKind::kPremulSum;

INSTANTIATE_TEST_SUITE_P(WithoutFactor, ReductionPlan,
                         ::testing::Values(Row{"fp32 4", DType::kF32, 4, 1, kNone, false, 1, kAvg, 1, kAvg, 1},
                                           Row{"bf16 4", DType::kBF16, 4, 1, kNone, false, 1, kAvg, 1, kAvg, 1},
                                           Row{"fp64 4", DType::kF64, 4, 1, kNone, false, 1, kAvg, 1, kAvg, 1},
                                           Row{"fp32 2x2", DType::kF32, 2, 2, kNone, false, 1, kAvg, 1, kAvg, 1},
                                           Row{"fp32 1", DType::kF32, 1, 1, kNone, false, 1, kSum, 1, kSum, 1}));

// p doubles while it divides f and f / p > p: f = p * q.
INSTANTIATE_TEST_SUITE_P(Fp16, ReductionPlan,
                         ::testing::Values(Row{"1", DType::kF16, 1, 1, kNone, false, 1, kSum, 1, kSum, 1},
                                           Row{"2", DType::kF16, 2, 1, kNone, false, 2, kSum, 1, kSum, 1},
                                           Row{"3", DType::kF16, 3, 1, kNone, false, 2, kSum, 1, kSum, 1.5},
                                           Row{"4", DType::kF16, 4, 1, kNone, false, 2, kSum, 1, kSum, 2},
                                           Row{"6", DType::kF16, 6, 1, kNone, false, 4, kSum, 1, kSum, 1.5},
                                           Row{"8", DType::kF16, 8, 1, kNone, false, 4, kSum, 1, kSum, 2},
                                           Row{"16", DType::kF16, 16, 1, kNone, false, 4, kSum, 1, kSum, 4},
                                           Row{"64", DType::kF16, 64, 1, kNone, false, 8, kSum, 1, kSum, 8},
                                           Row{"2x4 counts replicas", DType::kF16, 4, 2, kNone, false, 4, kSum, 1, kSum,
                                               2},
                                           Row{"custom 3 of 4", DType::kF16, 4, 1, 3.0, false, 2, kSum, 1, kSum, 1.5}));

INSTANTIATE_TEST_SUITE_P(CustomFactor, ReductionPlan,
                         ::testing::Values(Row{"N", DType::kF32, 4, 1, 4.0, false, 1, kAvg, 1, kSum, 1},
                                           Row{"N of 4x2", DType::kF32, 4, 2, 4.0, false, 1, kAvg, 1, kSum, 1},
                                           Row{"other", DType::kF32, 4, 1, 8.0, false, 1, kPremul, 0.125, kSum, 1},
                                           Row{"other, 2x2", DType::kBF16, 2, 2, 8.0, false, 1, kPremul, 0.125, kSum,
                                               1}));

INSTANTIATE_TEST_SUITE_P(ForceSum, ReductionPlan,
                         ::testing::Values(Row{"default", DType::kF32, 4, 1, kNone, true, 1, kSum, 1, kSum, 4},
                                           Row{"2x2", DType::kBF16, 2, 2, kNone, true, 1, kSum, 1, kSum, 4},
                                           Row{"factor", DType::kF32, 4, 1, 2.0, true, 1, kSum, 1, kSum, 2}));

// --- What it comes to: W ranks with the same gradient g give W * g / f, f = W by default.

struct Case {
  int ranks;
  int shard;
  std::optional<double> factor;
  bool force_sum;
  std::optional<DType> reduce_dtype;
};

TEST(DivideFactor, IsAppliedOnceForEveryMeshAndDtype) {
  std::vector<double> whole;
  run_world(1, [&](RankContext&, comm::World&) {
    const auto chain = test::whole_chain(4, 1);
    test::forward_backward(*chain, test::toy_input(0, 2, 4));
    whole = chain->block(0).weight.value.grad().to_vector<double>();
  });
  for (const Case& c : {Case{1, 1, 2.0, false, {}}, Case{1, 1, 2.0, true, {}}, Case{1, 1, 2.0, false, DType::kF16},
                        Case{2, 2, 4.0, false, {}}, Case{2, 2, 4.0, true, {}}, Case{2, 1, 4.0, false, {}},
                        Case{4, 2, 8.0, false, {}}, Case{4, 2, 2.0, false, {}}, Case{4, 4, 8.0, false, DType::kF16},
                        Case{4, 2, {}, true, {}}, Case{4, 2, {}, false, DType::kF16}}) {
    run_world(c.ranks, [&](RankContext&, comm::World& world) {
      FullyShardOptions options = test::sharded_over(world, c.shard);
      options.policy.reduce_dtype = c.reduce_dtype;
      const auto chain = test::sharded_chain(4, 1, options);
      ParamGroup& group = *FsdpState::of(chain->block(0))->group();
      GroupSwitches switches = group.switches();
      switches.gradient_divide_factor = c.factor;
      switches.force_sum_reduction = c.force_sum;
      group.set_switches(switches);
      test::forward_backward(*chain, test::toy_input(0, 2, 4));
      const std::vector<double> grad = chain->block(0).weight.value.grad().to_vector<double>();
      const Chunk chunk = chunk_of(4, options.axes.shard.rank(), c.shard);
      const std::vector<double> rows = test::rows_of(whole, chunk.row_begin, chunk.rows, 4);
      const double times = c.ranks / c.factor.value_or(c.ranks);
      // Factors are powers of two: fp32 adds at most 3 roundings; fp16 has 11 bits, rounds at the cast and at each of 3
      // sums.
      const double epsilon = c.reduce_dtype ? 4 * 0x1p-11 : 3 * 0x1p-24;
      const double smallest = c.reduce_dtype ? 0x1p-22 : 0.0;  // fp16 below 2^-14 has steps of 2^-24, four of them
      for (std::size_t i = 0; i < grad.size(); ++i) {
        EXPECT_NEAR(grad[i], times * rows[i], epsilon * std::abs(times * rows[i]) + 4 * smallest)
            << c.ranks << " ranks, shards over " << c.shard << ", f " << c.factor.value_or(0) << " " << c.force_sum;
      }
    });
  }
}

}  // namespace
}  // namespace loom::sharding
