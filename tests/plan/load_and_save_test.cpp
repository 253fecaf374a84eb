// Promise: the phases load and save of a plan have the device memory of a run that loads and saves, to the byte, and
//          the host memory of the formulas; a job that does neither has neither.
// World:   the quick start's model on four ranks, as threads with real arithmetic and planned; four steps, then a save.
#include <algorithm>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "engine/cli/hub_callbacks.h"
#include "engine/device/recorder.h"
#include "engine/launch/run_ranks.h"
#include "engine/plan/plan_output.h"
#include "engine/train/run_checkpoints.h"
#include "engine/train/trainer.h"
#include "tests/support/files.h"
#include "tests/support/small_plan.h"

namespace loom::plan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kFloat = 4;
constexpr std::int64_t kLargest = 688 * 256;  // elements of the largest parameter

train::TrainSections job(train::CheckpointFormat format, const std::filesystem::path& folder) {
  train::TrainSections a = arguments();
  a.data.seq_length = 16;
  a.checkpoint.ckpt_format = format;
  a.checkpoint.save = folder;
  return a;
}

struct Memory {
  device::MemoryPeaks peaks;
  std::int64_t end_bytes = 0;
};

Memory memory_of(const device::Recorder& recorder) {
  const device::Recording recording = recorder.recording();
  return {device::peaks_of(recording.memory), recording.memory.back().allocated_bytes};
}

// Of rank 0 of a run: `run` records it.
using RankMain = std::function<Memory(device::Device& device, comm::World& world)>;
Memory memory_of_run(const train::TrainSections& a, const RankMain& run) {
  Memory found;
  launch::run_ranks(kRanks, {std::chrono::seconds(60)}, [&](RankContext& context, comm::World& world) {
    device::DeviceOptions options;
    options.profile.matrix_workspace_bytes = profile().memory.matrix_workspace_bytes;
    device::Device& device = device::Device::install(context, options);
    context.slot<nn::KernelOptions>() = a.kernels.fused;
    const Memory memory = run(device, world);
    if (context.rank() == 0) found = memory;
  });
  return found;
}

Memory memory_of_save(const train::TrainSections& a) {
  const train::PretrainCallbacks calls = cli::hub_callbacks(a);
  const train::TrainingInputs inputs = train::read_inputs(a, calls);
  return memory_of_run(a, [&](device::Device& device, comm::World& world) {
    train::Trainer trainer(a, calls, inputs, world);
    train::RunCheckpoints checkpoints(trainer, a, {}, world, [](const std::string&) {});
    for (int step = 0; step < 4; ++step) trainer.step();
    const device::Recorder recorder(device, {.entries = false, .memory = true});
    if (checkpoints.saves()) {
      checkpoints.save();
      checkpoints.finish();
    } else {
      EXPECT_EQ(trainer.save(*a.checkpoint.save), std::nullopt);
    }
    return memory_of(recorder);
  });
}

Memory memory_of_load(const train::TrainSections& a) {
  const train::PretrainCallbacks calls = cli::hub_callbacks(a);
  const train::TrainingInputs inputs = train::read_inputs(a, calls);
  return memory_of_run(a, [&](device::Device& device, comm::World& world) {
    const device::Recorder recorder(device, {.entries = false, .memory = true});
    train::Trainer trainer(a, calls, inputs, world);
    train::RunCheckpoints checkpoints(trainer, a, {}, world, [](const std::string&) {});
    const auto step = checkpoints.load();
    EXPECT_EQ(step.has_value(), a.checkpoint.load.has_value());
    return memory_of(recorder);
  });
}

StepEstimate planned(const train::TrainSections& a) { return estimate_step(a, cli::hub_callbacks(a), profile()); }

std::vector<std::string> names_of(const StepEstimate& plan) {
  std::vector<std::string> names;
  for (const PhaseMemory& phase : plan.memory.phases) names.push_back(phase.phase);
  return names;
}

void expect_same(const PhaseMemory& phase, const Memory& run) {
  EXPECT_EQ(phase.peak_allocated_bytes, run.peaks.allocated_bytes) << phase.phase;
  EXPECT_EQ(phase.by_category_at_peak, run.peaks.by_category_at_peak) << phase.phase;
  EXPECT_EQ(phase.end_allocated_bytes, run.end_bytes) << phase.phase;
}

TEST(LoadAndSave, OfACheckpointAreThoseOfARun) {
  const std::filesystem::path folder = test::fresh_folder() / "checkpoints";
  train::TrainSections a = job(train::CheckpointFormat::kTorchDcp, folder);
  const Memory saved = memory_of_save(a);
  a.checkpoint.load = folder;
  const StepEstimate plan = planned(a);
  ASSERT_THAT(names_of(plan), ElementsAre("load", "forward", "backward", "optimizer", "save"));
  expect_same(plan.memory.phases.back(), saved);
  expect_same(plan.memory.phases.front(), memory_of_load(a));
  // Adam's two tensors for each element of the rank's shards.
  EXPECT_EQ(plan.memory.phases.front().host_bytes, 2 * plan.parameters / kRanks * kFloat);
  EXPECT_EQ(plan.memory.phases.back().host_bytes, 0);
}

TEST(LoadAndSave, OfWeightsAloneLoadNoState) {
  const std::filesystem::path folder = test::fresh_folder() / "checkpoints";
  train::TrainSections a = job(train::CheckpointFormat::kTorchDcp, folder);
  memory_of_save(a);
  a.checkpoint.load = folder;
  a.checkpoint.finetune = true;
  const PhaseMemory load = planned(a).memory.phases.front();
  EXPECT_EQ(load.phase, "load");
  expect_same(load, memory_of_load(a));
  EXPECT_EQ(load.host_bytes, 0);
  EXPECT_EQ(load.by_category_at_peak[device::MemCategory::kOptimizerState], 0);
}

// All tensors, and twice the largest for its gather.
TEST(LoadAndSave, OfAModelAreThoseOfARun) {
  const std::filesystem::path folder = test::fresh_folder() / "model";
  train::TrainSections a = job(train::CheckpointFormat::kHf, folder);
  const StepEstimate plan = planned(a);
  ASSERT_THAT(names_of(plan), ElementsAre("forward", "backward", "optimizer", "save"));
  expect_same(plan.memory.phases.back(), memory_of_save(a));
  EXPECT_EQ(plan.memory.phases.back().host_bytes, (plan.parameters + 2 * kLargest) * kFloat);
  a.checkpoint.save_dtype = train::SaveDType::kBf16;
  EXPECT_EQ(planned(a).memory.phases.back().host_bytes, plan.parameters * 2 + 2 * kLargest * kFloat);
}

// Weights and Adam's two tensors.
TEST(LoadAndSave, InTheBackgroundCopyTheRanksTensors) {
  train::TrainSections a = job(train::CheckpointFormat::kTorchDcp, test::fresh_folder());
  a.checkpoint.async_save = true;
  const StepEstimate plan = planned(a);
  EXPECT_EQ(plan.memory.phases.back().host_bytes, 3 * plan.parameters / kRanks * kFloat);
  a.checkpoint.no_save_optim = true;
  EXPECT_EQ(planned(a).memory.phases.back().host_bytes, plan.parameters / kRanks * kFloat);
}

TEST(LoadAndSave, AreShownBesideThePhasesOfTheStep) {
  train::TrainSections a = job(train::CheckpointFormat::kHf, test::fresh_folder());
  const StepEstimate saving = planned(a);
  EXPECT_THAT(to_text(saving), AllOf(HasSubstr("   optimizer        save\n"), HasSubstr("\n  on the host, more ")));
  EXPECT_EQ(to_json(saving)["memory"]["phases"][3]["phase"], "save");
  EXPECT_EQ(to_json(saving)["memory"]["phases"][3]["host_bytes"], saving.memory.phases[3].host_bytes);
  a.checkpoint.save.reset();
  const StepEstimate plan = planned(a);
  EXPECT_THAT(names_of(plan), ElementsAre("forward", "backward", "optimizer"));
  EXPECT_THAT(to_text(plan), Not(HasSubstr("on the host, more")));
  EXPECT_EQ(plan.memory.peak_allocated_bytes, saving.memory.peak_allocated_bytes);
}

}  // namespace
}  // namespace loom::plan
