// Promise: a plan with --params-dtype bf16 has two bytes an element for parameters, for gradients and for each moment,
//          and gathers them without a cast.
// World:   the quick start's model on four ranks, on an H200; no arithmetic.
#include <algorithm>
#include <gtest/gtest.h>

#include "engine/cli/hub_callbacks.h"
#include "engine/core/rounding.h"
#include "engine/nn/make_rank.h"
#include "engine/plan/planner.h"
#include "engine/train/inputs.h"
#include "sharding/memory.h"
#include "sharding/streams.h"
#include "tests/support/files.h"
#include "tests/support/small_plan.h"

namespace loom::plan {
namespace {

constexpr std::int64_t kBlock = 512;  // as the allocator rounds

// Of a rank: the padded elements of its shards, and the bytes of one tensor for each.
struct Shards {
  std::int64_t elems = 0;
  std::int64_t bytes = 0;
};

Shards shards_of(const train::TrainSections& a) {
  const nn::ProbeRank rank;
  const auto model = train::provide_model(a, cli::hub_callbacks(a));
  Shards found;
  for (const Tensor& parameter : model->parameters()) {
    EXPECT_EQ(parameter.dtype(), a.model.params_dtype);
    const Shape& shape = parameter.shape();
    const std::int64_t elems = ceil_div(shape[0], std::int64_t{kRanks}) * shape.row_elems();
    found.elems += elems;
    found.bytes += round_up(elems * element_bytes(parameter.dtype()), kBlock);
  }
  return found;
}

train::TrainSections arguments_in(DType stored) {
  train::TrainSections a = arguments();
  a.model.params_dtype = stored;
  a.parallel.fsdp2_config_path =
      test::write_file(test::fresh_folder() / "fsdp2.yaml",
                       "sharding_size: auto\nsub_modules_to_wrap: [model.embed_tokens, \"model.layers.{*}\", lm_head]\n"
                       "param_dtype: bf16\nreduce_dtype: fp32\n");
  return a;
}

StepEstimate plan_of(const train::TrainSections& a) { return estimate_step(a, cli::hub_callbacks(a), profile()); }

std::int64_t bytes_of(const StepEstimate& plan, device::MemCategory category) {
  return plan.memory.phases.back().by_category_at_peak[category];
}

std::int64_t casts_of_gathers(const StepEstimate& plan) {
  const device::Recording& recording = plan.run().recording;
  return std::ranges::count_if(recording.entries, [&](const device::Entry& entry) {
    return entry.stream == sharding::kGatherCopyInStream && recording.text(entry.name) == "cast";
  });
}

TEST(PlanOfStoredDtype, HasTheBytesOfTheDtype) {
  for (const DType stored : {DType::kF32, DType::kBF16}) {
    const train::TrainSections a = arguments_in(stored);
    const Shards shards = shards_of(a);
    const StepEstimate plan = plan_of(a);
    ASSERT_EQ(plan.memory.phases.back().phase, "optimizer");
    EXPECT_EQ(bytes_of(plan, sharding::kShard), shards.bytes);
    EXPECT_EQ(bytes_of(plan, device::MemCategory::kOptimizerState), 2 * shards.bytes);
    const std::int64_t gradients = bytes_of(plan, device::MemCategory::kGradient);
    const std::int64_t groups = 8 + 3;  // layers; embedding, head, root: a buffer each
    EXPECT_GE(gradients, shards.elems * element_bytes(stored));
    EXPECT_LT(gradients, shards.elems * element_bytes(stored) + groups * kBlock);
  }
}

TEST(PlanOfStoredDtype, GathersBf16ShardsWithoutACast) {
  const StepEstimate exact = plan_of(arguments_in(DType::kF32)), stored = plan_of(arguments_in(DType::kBF16));
  EXPECT_EQ(casts_of_gathers(exact), 2 * 2 * 11);  // forward and backward of two micro-batches
  EXPECT_EQ(casts_of_gathers(stored), 0);
  EXPECT_EQ(stored.communication[0].received_bytes, exact.communication[0].received_bytes);
  EXPECT_EQ(stored.communication[1].received_bytes, exact.communication[1].received_bytes);
  EXPECT_LT(stored.time.step_ns, exact.time.step_ns);
}

}  // namespace
}  // namespace loom::plan
