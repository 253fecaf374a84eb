// Promise: a plan knows what each kind of recompute saves and costs, by formula; a search leaves what flags choose.
// World:   the quick start's model (8 layers) on one device or four, two micro-batches of 2 x 64 tokens, PyTorch's
//          kernels with SwiGLU and norms fused.
#include <gmock/gmock.h>

#include "engine/cli/hub_callbacks.h"
#include "engine/core/error.h"
#include "engine/plan/plan_search.h"
#include "tests/support/files.h"
#include "tests/support/small_plan.h"

namespace loom::plan {
namespace {

using models::LayerRecompute;
using models::RecomputeGranularity;
using models::RecomputeMethod;

constexpr std::int64_t kLayers = 8, kMicroBatches = 2, kTokens = 2 * 64;

struct Sizes {
  std::int64_t hidden = 0, mlp = 0;
};

train::TrainSections with(const LayerRecompute& asked, int ranks) {
  train::TrainSections a = arguments();
  a.kernels.fused.fused_swiglu = a.kernels.fused.fused_rmsnorm = true;
  a.launch.ranks = ranks;
  a.schedule.global_batch_size = static_cast<int>(ranks * kMicroBatches) * a.schedule.micro_batch_size;
  a.parallel.recompute_layers = asked;
  if (asked.any()) a.parallel.megatron_recompute_flags = {"--recompute-granularity"};
  return a;
}

// On one rank nothing is on the links beside the kernels, whose times are then a matter of their sizes alone.
StepEstimate plan_of(const LayerRecompute& asked, int ranks = 1) {
  const train::TrainSections a = with(asked, ranks);
  return estimate_step(a, cli::hub_callbacks(a), profile());
}

LayerRecompute block(std::int64_t layers) {
  return {.granularity = RecomputeGranularity::kFull, .method = RecomputeMethod::kBlock, .num_layers = layers};
}

std::int64_t compute_ns(const StepEstimate& plan) {
  std::int64_t sum = 0;
  std::size_t i = 0;
  for (const device::Entry& entry : plan.run().recording.entries) {
    const virtual_time::EntryTime& time = plan.run().times.entries[i++];
    if (entry.kind == device::EntryKind::kKernel && entry.stream == device::StreamId::kCompute)
      sum += time.end - time.start;
  }
  return sum;
}

// Of all kernels of a name.
std::vector<std::int64_t> kernel_ns(const StepEstimate& plan, std::string_view name) {
  std::vector<std::int64_t> all;
  std::size_t i = 0;
  for (const device::Entry& entry : plan.run().recording.entries) {
    const virtual_time::EntryTime& time = plan.run().times.entries[i++];
    if (plan.run().recording.text(entry.name) == name) all.push_back(time.end - time.start);
  }
  return all;
}

// What is kept for backward, where forward ends.
std::int64_t kept_bytes(const StepEstimate& plan) { return plan.memory.phases[0].end_allocated_bytes; }

Sizes sizes() {
  const train::TrainSections a = arguments();
  const auto model = cli::hub_callbacks(a).model_provider(train::TrainArguments(a));
  const nn::Module& down = *model->find("model.layers.0.mlp.down_proj");
  const Shape shape = down.named_parameters()[0].second.shape();
  return {shape[0], shape[1]};
}

TEST(PlannedRecompute, OfTheActivationFunctionCostsOneKernelALayerAndSavesItsOutput) {
  const StepEstimate plain = plan_of({}), dropped = plan_of({.activation_function = true});
  const auto kernels = kernel_ns(plain, "swiglu"), again = kernel_ns(dropped, "swiglu");
  ASSERT_EQ(kernels.size(), static_cast<std::size_t>(kLayers * kMicroBatches));
  EXPECT_EQ(again.size(), 2 * kernels.size());
  EXPECT_EQ(compute_ns(dropped) - compute_ns(plain), kLayers * kMicroBatches * kernels[0]);
  EXPECT_EQ(kept_bytes(plain) - kept_bytes(dropped), kLayers * kTokens * sizes().mlp * 4);
  EXPECT_LT(dropped.memory.peak_allocated_bytes, plain.memory.peak_allocated_bytes);
  EXPECT_EQ(dropped.throughput.model_flops, plain.throughput.model_flops);
}

TEST(PlannedRecompute, OfNormsCostsTwoKernelsALayer) {
  const StepEstimate plain = plan_of({}), dropped = plan_of({.norm = true, .norm_num_layers = 3});
  const auto kernels = kernel_ns(plain, "rms_norm");
  ASSERT_EQ(kernels.size(), static_cast<std::size_t>((2 * kLayers + 1) * kMicroBatches));
  EXPECT_EQ(compute_ns(dropped) - compute_ns(plain), 3 * 2 * kMicroBatches * kernels[0]);
  // And one number a token, which each norm keeps.
  EXPECT_EQ(kept_bytes(plain) - kept_bytes(dropped), 3 * 2 * kTokens * (sizes().hidden + 1) * 4);
}

TEST(PlannedRecompute, OfWholeLayersCostsAndSavesTheSameForEachLayer) {
  const StepEstimate plain = plan_of({}), one = plan_of(block(1));
  const std::int64_t cost = compute_ns(one) - compute_ns(plain);
  const std::int64_t saved = kept_bytes(plain) - kept_bytes(one);
  EXPECT_GT(cost, 0);
  EXPECT_GT(saved, 0);
  for (const std::int64_t layers : {2, 5, 8}) {
    const StepEstimate plan = plan_of(block(layers));
    EXPECT_EQ(compute_ns(plan) - compute_ns(plain), layers * cost) << layers;
    EXPECT_EQ(plan.throughput.hardware_flops - plain.throughput.hardware_flops,
              static_cast<double>(layers) * (one.throughput.hardware_flops - plain.throughput.hardware_flops));
    EXPECT_EQ(kept_bytes(plain) - kept_bytes(plan), layers * saved) << layers;
  }
}

TEST(PlannedRecompute, OfGroupsKeepsFewerInputsAndHasMoreInBackward) {
  LayerRecompute uniform = block(4);
  uniform.method = RecomputeMethod::kUniform;
  const StepEstimate each = plan_of(block(kLayers), kRanks), grouped = plan_of(uniform, kRanks);
  EXPECT_EQ(kept_bytes(each) - kept_bytes(grouped), (kLayers - 2) * kTokens * sizes().hidden * 4);
  EXPECT_GT(compute_ns(grouped), compute_ns(each));  // down of all but a group's last layer is computed again too
  EXPECT_EQ(grouped.communication[0].count, each.communication[0].count);
}

TEST(PlannedRecompute, OfFlagsIsLeftAloneByASearch) {
  train::TrainSections large = with({.norm = true}, kRanks);
  large.kernels.fused = nn::KernelOptions::pytorch();
  large.schedule.micro_batch_size = 16;
  large.schedule.global_batch_size = 16 * kRanks;
  const CheckedEstimate checked = PlanSearch(large, cli::hub_callbacks(large), profile(200 * kMiB)).check();
  ASSERT_TRUE(checked.out_of_memory.has_value());
  ASSERT_FALSE(checked.remedies.empty());
  for (const Remedy& remedy : checked.remedies)
    EXPECT_THAT(remedy.change, ::testing::Not(::testing::HasSubstr("recompute")));
}

}  // namespace
}  // namespace loom::plan
