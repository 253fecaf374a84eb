// Promise: smart swap chooses the tensors with the largest bytes x idle time, and as few of them as make a planned step
//          run within the budget, the same every time; the run with them has the planned step's events, bytes and time,
//          and the bits of one without.
// World:   a decoder of six layers on rank 0 of one device with a link to the host that is fast enough; dry runs, and
//          runs of one rank.
#include "engine/plan/smart_swap.h"

#include <gmock/gmock.h>

#include "engine/cli/hub_callbacks.h"
#include "engine/comm/simulated/simulated.h"
#include "engine/core/error.h"
#include "engine/device/recorder.h"
#include "engine/launch/run_ranks.h"
#include "engine/train/trainer.h"
#include "engine/virtual_time/resolve.h"
#include "tests/support/files.h"
#include "tests/support/small_plan.h"

namespace loom::plan {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr std::int64_t kKiB = 1 << 10;

// Slow arithmetic: everything hides behind it.
virtual_time::HardwareProfile slow_device() {
  virtual_time::HardwareProfile slow = profile();
  for (auto& [dtype, peak] : slow.matrix.peak_flops_per_s) peak = 1e9;
  slow.measured = {};
  return slow;
}

train::TrainSections six_layers() {
  const std::filesystem::path folder = test::fresh_folder();
  train::TrainSections a = arguments();
  a.model.model_config = test::write_file(
      folder / "model.yaml",
      "model_type: qwen2\nvocab_size: 256\nhidden_size: 64\nintermediate_size: 128\nnum_hidden_layers: 6\n"
      "num_attention_heads: 2\nnum_key_value_heads: 1\nmax_position_embeddings: 256\nrms_norm_eps: 1.0e-6\n"
      "tie_word_embeddings: false\n");
  a.parallel.fsdp2_config_path = test::write_file(
      folder / "fsdp2.yaml",
      "sharding_size: auto\nsub_modules_to_wrap: [model.embed_tokens, \"model.layers.{*}\", lm_head]\n");
  a.launch.ranks = 1;
  a.data.seq_length = 256;
  a.schedule.micro_batch_size = 16;
  a.schedule.global_batch_size = 16;
  a.kernels.set = train::KernelSet::kFast;
  a.kernels.fused = nn::KernelOptions::fast();
  return a;
}

class SmartSwapTest : public ::testing::Test {
 protected:
  SmartSwap choose(std::int64_t budget_bytes) const { return choose_swaps(a, calls, device, budget_bytes); }
  StepEstimate planned(const SmartSwap& swap, Capacity capacity = Capacity::kLifted) const {
    train::TrainSections swapped = a;
    swapped.swap.smart_swap_chosen = swap.tensors();
    virtual_time::HardwareProfile small = device;
    small.memory.capacity_bytes = swap.budget_bytes;
    return estimate_step(swapped, calls, small, capacity);
  }
  // A budget that a step without swap misses by a third of what can be swapped.
  std::int64_t tight() const {
    const std::int64_t needs = estimate_step(a, calls, device).memory.peak_reserved_bytes;
    return needs * 4 / 5;
  }

  const train::TrainSections a = six_layers();
  const train::PretrainCallbacks calls = cli::hub_callbacks(a);
  const virtual_time::HardwareProfile device = slow_device();
};

// --device-memory says what the device has, not what the choice has to fit.
TEST_F(SmartSwapTest, FitsItsBudgetWhateverTheDeviceHas) {
  train::TrainSections large = a;
  large.memory.device_memory_mib = 1 << 20;
  const SmartSwap swap = choose_swaps(large, calls, device, tight());
  EXPECT_FALSE(swap.chosen.empty());
  EXPECT_LE(swap.swapped_bytes, tight());
  EXPECT_EQ(to_text(swap), to_text(choose(tight())));
  EXPECT_EQ(swap_budget(large, calls, device), std::int64_t{1} << 40);
  large.swap.smart_swap_device_size = 7;
  EXPECT_EQ(swap_budget(large, calls, device), 7 * kMiB);
}

TEST_F(SmartSwapTest, ChoosesNothingWhereAStepFits) {
  const SmartSwap swap = choose(std::int64_t{1} << 40);
  EXPECT_TRUE(swap.chosen.empty());
  EXPECT_GT(swap.candidates, 0);
  EXPECT_EQ(swap.swapped_bytes, swap.unswapped_bytes);
  EXPECT_THAT(to_text(swap), HasSubstr("MiB without swap: nothing is swapped\n"));
}

TEST_F(SmartSwapTest, ChoosesTheLeastThatFits) {
  const std::int64_t budget = tight();
  const SmartSwap swap = choose(budget);
  ASSERT_GT(swap.chosen.size(), 1U);
  EXPECT_GT(swap.unswapped_bytes, budget);
  EXPECT_LE(swap.swapped_bytes, budget);
  EXPECT_NO_THROW(planned(swap, Capacity::kOfTheProfile));
  SmartSwap fewer = swap;
  fewer.chosen.pop_back();
  EXPECT_THROW(planned(fewer, Capacity::kOfTheProfile), OutOfMemoryError);
}

TEST_F(SmartSwapTest, TakesTheLargestAndLongestIdleFirst) {
  const SmartSwap swap = choose(tight());
  for (std::size_t i = 1; i < swap.chosen.size(); ++i) {
    const SwapChoice &before = swap.chosen[i - 1], &after = swap.chosen[i];
    EXPECT_GE(static_cast<double>(before.bytes) * static_cast<double>(before.idle_ns),
              static_cast<double>(after.bytes) * static_cast<double>(after.idle_ns));
  }
  // lm_head is the last block: what it saves stays.
  for (const SwapChoice& choice : swap.chosen) EXPECT_NE(choice.block, "lm_head");
}

TEST_F(SmartSwapTest, IsTheSameEveryTime) {
  const std::int64_t budget = tight();
  EXPECT_EQ(choose(budget).tensors(), choose(budget).tensors());
}

TEST_F(SmartSwapTest, IsATableOfModulesWithWhatIsExposed) {
  const SmartSwap swap = choose(tight());
  const std::string text = to_text(swap);
  EXPECT_THAT(text, HasSubstr(fmt::format("{} of {} tensors are swapped", swap.chosen.size(), swap.candidates)));
  EXPECT_THAT(text, HasSubstr("module"));
  EXPECT_THAT(text, ContainsRegex(" exposed [a-z]+\n"));
  EXPECT_THAT(text, HasSubstr("\n  " + swap.chosen.front().block + " "));
  for (const SwapEstimate& exposed : swap.exposed) EXPECT_GT(exposed.out_bytes, 0);
}

TEST_F(SmartSwapTest, RefusesABudgetThatSwapCannotReach) {
  const std::string text = test::message_of<ConfigError>([&] { choose(64 * kKiB); });
  EXPECT_THAT(text, HasSubstr("--smart-swap: a step has to fit 0.1 MiB, and needs "));
  EXPECT_THAT(text, HasSubstr("MiB without swap and "));
  EXPECT_THAT(text, HasSubstr("; give at least "));
  EXPECT_THAT(text, HasSubstr("recompute modules (recompute_modules), shard over more ranks, or use a smaller "
                              "micro-batch"));
}

// The least that the refusal names is enough.
TEST_F(SmartSwapTest, NamesABudgetThatIsEnough) {
  const std::string text = test::message_of<ConfigError>([&] { choose(64 * kKiB); });
  const std::string words = "; give at least ";
  const std::int64_t least = std::stoll(text.substr(text.find(words) + words.size()));
  EXPECT_NO_THROW(choose(least * kMiB));
}

struct FourSteps {
  std::vector<double> values;
  device::Recording last;
};

FourSteps run(const train::TrainSections& a, const train::PretrainCallbacks& calls, std::int64_t workspace_bytes) {
  const train::TrainingInputs inputs = train::read_inputs(a, calls);
  FourSteps result;
  launch::run_ranks(1, {std::chrono::seconds(60)}, [&](RankContext& context, comm::World& world) {
    device::DeviceOptions options;
    options.profile.matrix_workspace_bytes = workspace_bytes;
    device::Device& device = device::Device::install(context, options);
    context.slot<nn::KernelOptions>() = a.kernels.fused;
    train::Trainer trainer(a, calls, inputs, world);
    for (int step = 0; step < 3; ++step) {
      const train::StepMetrics metrics = trainer.step();
      result.values.insert(result.values.end(), {metrics.loss, metrics.grad_norm});
    }
    const device::Recorder recorder(device, {.memory = true});
    trainer.step();
    result.last = recorder.recording();
  });
  return result;
}

TEST_F(SmartSwapTest, TrainsAsItPlansWithTheBitsOfARunWithoutIt) {
  const SmartSwap swap = choose(tight());
  const StepEstimate plan = planned(swap);
  train::TrainSections swapped = a;
  swapped.swap.smart_swap_chosen = swap.tensors();
  const FourSteps with = run(swapped, calls, device.memory.matrix_workspace_bytes);
  const FourSteps without = run(a, calls, device.memory.matrix_workspace_bytes);
  EXPECT_EQ(with.values, without.values);
  ASSERT_EQ(with.last.entries.size(), plan.run().recording.entries.size());
  const device::MemoryPeaks peaks = device::peaks_of(with.last.memory);
  EXPECT_EQ(peaks.allocated_bytes, plan.memory.peak_allocated_bytes);
  EXPECT_EQ(peaks.reserved_bytes, plan.memory.peak_reserved_bytes);
  EXPECT_LT(peaks.allocated_bytes, device::peaks_of(without.last.memory).allocated_bytes);
  const virtual_time::RankRecording rank{0, &with.last};
  EXPECT_EQ(virtual_time::resolve({&rank, 1}, virtual_time::TimeModel(device)).end_ns, plan.time.step_ns);
}

}  // namespace
}  // namespace loom::plan
