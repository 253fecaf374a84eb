// Promise: a plan is what a run does - the same events, bytes and virtual time - at any size; it says what does not fit
// and what would help; searches find the best that fits.
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/device/recorder.h"
#include "engine/launch/run_ranks.h"
#include "engine/nn/layers.h"
#include "engine/plan/plan_callbacks.h"
#include "engine/plan/plan_output.h"
#include "engine/plan/plan_search.h"
#include "engine/tensor/ops.h"
#include "engine/train/trainer.h"
#include "engine/virtual_time/profile_file.h"
#include "engine/virtual_time/resolve.h"

namespace loom::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::filesystem::path kSource = LOOM_SOURCE_DIR;
constexpr int kRanks = 4;
constexpr std::int64_t kMiB = 1 << 20;

virtual_time::HardwareProfile profile(std::int64_t memory_bytes = std::int64_t{1} << 37) {
  virtual_time::HardwareProfile profile = virtual_time::load_profile(kSource / "configs/devices/h200.yaml");
  profile.memory.capacity_bytes = memory_bytes;
  profile.memory.context_bytes = 0;
  return profile;
}

train::TrainArguments arguments(const char* yaml = "quickstart.yaml") {
  train::TrainArguments a;
  a.model_config = kSource / "configs/models/quickstart.yaml";
  a.use_torch_fsdp2 = true;
  a.fsdp2_config_path = kSource / "configs/fsdp2" / yaml;
  a.seq_length = 64;
  a.micro_batch_size = 2;
  a.ranks = kRanks;
  a.global_batch_size = 2 * kRanks * a.micro_batch_size;  // two micro-batches a step
  a.device_executor = device::ExecutorKind::kInline;
  a.kernels = train::KernelSet::kPytorch;
  a.fused = nn::KernelOptions::pytorch();
  return a;
}

// Callbacks that serve a run too: token ids with values, on the device as those of a plan are.
train::PretrainCallbacks callbacks(const train::TrainArguments& a) {
  train::PretrainCallbacks callbacks = plan_callbacks(a);
  const auto provide = callbacks.train_valid_test_datasets_provider;
  callbacks.train_valid_test_datasets_provider = [provide](const train::TrainArguments& asked) {
    data::DataLoaders loaders = provide(asked);
    loaders.train = [shapes = loaders.train](std::span<const std::int64_t> samples) {
      data::Batch batch = shapes(samples);
      for (const char* name : {"input_ids", "targets"}) batch[name].fill(static_cast<double>(samples.front() % 200));
      return batch;
    };
    return loaders;
  };
  return callbacks;
}

std::string line_of(const device::Recording& recording, const device::Entry& entry) {
  const device::Cost& c = entry.cost;
  return fmt::format("{} {} {} {} after {} moves {} flops {} reads {} writes {} links {} m{} n{} k{}",
                     static_cast<int>(entry.kind), static_cast<int>(entry.stream), recording.text(entry.name),
                     recording.text(entry.subject), entry.other, entry.bytes, c.flops, c.read_bytes, c.written_bytes,
                     c.link_bytes, c.m, c.n, c.k);
}

std::vector<std::string> lines_of(const device::Recording& recording) {
  std::vector<std::string> lines;
  for (const auto& entry : recording.entries) lines.push_back(line_of(recording, entry));
  return lines;
}

struct RealRun {
  std::vector<device::Recording> recordings;
  device::MemStats memory;  // of rank 0
};

// The fourth step of a real run: ranks as threads, real arithmetic.
RealRun run_fourth_step(const train::TrainArguments& a) {
  const train::PretrainCallbacks calls = callbacks(a);
  const train::TrainingInputs inputs = train::read_inputs(a, calls);
  RealRun run;
  run.recordings.resize(kRanks);
  launch::run_ranks(kRanks, {std::chrono::seconds(60)}, [&](RankContext& context, comm::World& world) {
    device::DeviceOptions options;
    options.profile.matrix_workspace_bytes = profile().memory.matrix_workspace_bytes;
    device::Device& device = device::Device::install(context, options);
    context.slot<nn::KernelOptions>() = a.fused;
    train::Trainer trainer(a, calls, inputs, world);
    for (int step = 0; step < 3; ++step) trainer.step(step);
    const device::Recorder recorder(device);
    trainer.step(3);
    const auto rank = static_cast<std::size_t>(context.rank());
    run.recordings[rank] = recorder.recording();
    if (rank == 0) run.memory = device.memory().stats();
  });
  return run;
}

class PlanAndRun : public ::testing::TestWithParam<const char*> {};

TEST_P(PlanAndRun, HaveTheSameEventsBytesAndVirtualTime) {
  train::TrainArguments a = arguments(GetParam());
  a.seq_length = 16;
  const StepEstimate plan = estimate_step(a, callbacks(a), profile());
  const RealRun run = run_fourth_step(a);
  const std::vector<std::string> planned = lines_of(plan.run.recording);
  const std::vector<std::string> ran = lines_of(run.recordings[0]);
  for (std::size_t i = 0; i < std::min(planned.size(), ran.size()); ++i) ASSERT_EQ(planned[i], ran[i]) << "event " << i;
  ASSERT_EQ(planned.size(), ran.size());
  EXPECT_EQ(plan.memory.reserved_bytes, run.memory.allocator.reserved_bytes);
  EXPECT_EQ(plan.memory.steady_allocated_bytes, run.memory.allocator.allocated_bytes);
  std::vector<virtual_time::RankRecording> ranks;
  for (int rank = 0; rank < kRanks; ++rank) ranks.push_back({rank, &run.recordings[static_cast<std::size_t>(rank)]});
  const virtual_time::VirtualTimes times = virtual_time::resolve(ranks, virtual_time::TimeModel(profile()));
  EXPECT_EQ(times.ranks[0].end_ns, plan.time.step_ns);
}

INSTANTIATE_TEST_SUITE_P(Configurations, PlanAndRun,
                         ::testing::Values("quickstart.yaml", "full_shard.yaml", "zero2.yaml", "offload.yaml"),
                         [](const auto& info) {
                           const std::string name = info.param;
                           return name.substr(0, name.find('.'));
                         });

TEST(Plan, SaysTheSameInTextAndJson) {
  const train::TrainArguments a = arguments();
  const StepEstimate plan = estimate_step(a, callbacks(a), profile());
  const nlohmann::ordered_json json = to_json(plan);
  EXPECT_EQ(json["world_size"], kRanks);
  EXPECT_EQ(json["mode"], "1 x 4: shards over 4, replicates over 1");
  EXPECT_EQ(json["parameters"], 5939456);
  EXPECT_EQ(json["memory"]["reserved_bytes"], plan.memory.reserved_bytes);
  EXPECT_EQ(json["time"]["step_ns"], plan.time.step_ns);
  std::vector<std::string> phases;
  for (const auto& phase : json["memory"]["phases"]) phases.push_back(phase["phase"]);
  EXPECT_THAT(phases, ElementsAre("forward", "backward", "optimizer"));
  const std::string text = to_text(plan);
  EXPECT_THAT(text, StartsWith("Qwen2ForCausalLM of 0.006 G parameters on 4 x h200, micro-batch 2 x 2 of 64 tokens\n"
                               "1 x 4: shards over 4, replicates over 1\n"));
  EXPECT_THAT(text, HasSubstr(fmt::format("step {:.2f} ms:", static_cast<double>(plan.time.step_ns) * 1e-6)));
}

// Per step and rank: each of the ten groups is gathered twice a micro-batch (forward, backward) and reduced once.
TEST(Plan, CountsCommunicationByFormula) {
  const train::TrainArguments a = arguments();
  const StepEstimate plan = estimate_step(a, callbacks(a), profile());
  const std::int64_t groups = 8 + 3;  // layers; embedding, head, root
  ASSERT_EQ(plan.communication.size(), 2u);
  const CommunicationEstimate &gathers = plan.communication[0], &reductions = plan.communication[1];
  EXPECT_EQ(gathers.collective, "all_gather");
  EXPECT_EQ(gathers.count, 2 * 2 * groups);
  EXPECT_EQ(gathers.received_bytes, 2 * 2 * plan.parameters * 4 * 3 / 4);
  EXPECT_EQ(reductions.collective, "reduce_scatter");
  EXPECT_EQ(reductions.count, 2 * groups);
  EXPECT_EQ(reductions.received_bytes, 2 * plan.parameters * 4 * 3 / 4);
  EXPECT_EQ(gathers.link, "node");
}

TEST(Plan, OfAStepThatDoesNotFitNamesPhaseAndGroupAndTheCheapestRemedies) {
  train::TrainArguments a = arguments();
  a.micro_batch_size = 8;
  a.global_batch_size = 8 * kRanks;
  const train::PretrainCallbacks calls = callbacks(a);
  const virtual_time::HardwareProfile small = profile(200 * kMiB);
  const CheckedEstimate checked = PlanSearch(a, calls, small).check();
  ASSERT_TRUE(checked.out_of_memory.has_value());
  EXPECT_THAT(*checked.out_of_memory,
              StartsWith("out of memory in forward, at group 'lm_head': [rank 0] tensor needs "));
  EXPECT_THAT(*checked.out_of_memory, HasSubstr("of 200.0 MiB free; in use:\n  shard "));
  EXPECT_FALSE(checked.plan.memory.fits);
  EXPECT_GT(checked.plan.memory.reserved_bytes, 200 * kMiB);
  ASSERT_FALSE(checked.remedies.empty());
  EXPECT_LE(checked.remedies.size(), 3u);
  std::vector<std::string> changes;
  for (const Remedy& remedy : checked.remedies) {
    changes.push_back(remedy.change);
    EXPECT_GT(remedy.saved_bytes, 0);
    EXPECT_THAT(to_text(checked), HasSubstr("  " + remedy.change + " (saves "));
  }
  EXPECT_THAT(changes, ::testing::Contains("recompute_modules: [model.layers.{*}]"));
  EXPECT_EQ(to_json(checked)["remedies"].size(), checked.remedies.size());
}

TEST(Plan, SaysWhenNoChangeOfTheFileWouldMakeItFit) {
  train::TrainArguments a = arguments();
  a.micro_batch_size = 1;
  a.global_batch_size = kRanks;
  const train::PretrainCallbacks calls = callbacks(a);
  const virtual_time::HardwareProfile tiny = profile(70 * kMiB);  // 64 of them are the matrix workspace
  const CheckedEstimate checked = PlanSearch(a, calls, tiny).check();
  EXPECT_THAT(checked.out_of_memory.value_or(""), StartsWith("out of memory in "));
  EXPECT_TRUE(checked.remedies.empty());
  EXPECT_THAT(to_text(checked), HasSubstr("\nno single change or pair of changes of the file would make it fit\n"));
  EXPECT_THAT([&] { PlanSearch(a, calls, tiny).largest_micro_batch(); },
              ::testing::ThrowsMessage<ConfigError>(
                  "a micro-batch of 1 does not fit on 4 x h200; plan without --fit to see what would help"));
}

// A model whose forward looks at what it computed.
class Peeking final : public nn::Module {
 public:
  Peeking() { register_module("embed", std::make_shared<nn::Embedding>(256, 256, 0.5)); }
  std::string_view type_name() const override { return "Peeking"; }

 protected:
  nn::Value forward(const nn::Args& args) override {
    const Tensor logits = (*find("embed"))(args.tensor(0));
    return logits.to_vector<float>()[0] > 0 ? logits : ops::scale(logits, 2.0);
  }
};

TEST(Plan, RefusesAModelWhoseForwardNeedsValues) {
  train::TrainArguments a = arguments();
  a.use_torch_fsdp2 = false;
  a.ranks = 1;
  a.global_batch_size = a.micro_batch_size;
  train::PretrainCallbacks calls = callbacks(a);
  calls.model_provider = [](const train::TrainArguments&) { return std::make_shared<Peeking>(); };
  EXPECT_THAT([&] { estimate_step(a, calls, profile()); },
              ::testing::ThrowsMessage<ConfigError>(
                  "the forward of Peeking reads values (to_vector() of a tensor fp32 [2, 64, 256]), and a plan "
                  "computes none; decide from shapes there, or run it with shardloom train"));
}

TEST(PlanSearch, FindsTheLargestMicroBatchThatFits) {
  const train::TrainArguments a = arguments();
  const train::PretrainCallbacks calls = callbacks(a);
  const virtual_time::HardwareProfile small = profile(400 * kMiB);
  const auto fit = PlanSearch(a, calls, small).largest_micro_batch();
  train::TrainArguments larger = a;
  larger.micro_batch_size = fit.choice.micro_batch;
  larger.global_batch_size = kRanks * larger.micro_batch_size;
  EXPECT_NO_THROW(estimate_step(larger, calls, small));
  ++larger.micro_batch_size;
  larger.global_batch_size = kRanks * larger.micro_batch_size;
  EXPECT_THROW(estimate_step(larger, calls, small), OutOfMemoryError);
}

TEST(PlanSearch, FindsTheSmallestWorldThatFits) {
  train::TrainArguments a = arguments();
  a.micro_batch_size = 1;
  const train::PretrainCallbacks calls = callbacks(a);
  const virtual_time::HardwareProfile small = profile(160 * kMiB);
  const auto fit = PlanSearch(a, calls, small).smallest_world();
  EXPECT_GT(fit.choice.world, 1);
  train::TrainArguments smaller = a;
  smaller.ranks = fit.choice.world / 2;
  smaller.global_batch_size = smaller.ranks;
  EXPECT_THROW(estimate_step(smaller, calls, small), OutOfMemoryError);
}

TEST(PlanSearch, SweepsWhatFitsTheFastestPerTokenFirst) {
  train::TrainArguments a = arguments();
  const train::PretrainCallbacks calls = callbacks(a);
  const auto sweep = PlanSearch(a, calls, profile(256 * kMiB)).sweep();
  ASSERT_GT(sweep.size(), 4u);
  for (std::size_t i = 0; i + 1 < sweep.size(); ++i) {
    EXPECT_GE(sweep[i].plan.throughput.tokens_per_s_per_device, sweep[i + 1].plan.throughput.tokens_per_s_per_device);
    EXPECT_LE(sweep[i].plan.memory.peak_allocated_bytes, 256 * kMiB);
  }
  const nlohmann::ordered_json json = to_json(sweep);
  EXPECT_EQ(json["sweep"].size(), sweep.size());
  EXPECT_EQ(json["sweep"][0]["change"], sweep[0].change);
}

TEST(PlanSearch, NeedsAFileToSweep) {
  train::TrainArguments a = arguments();
  a.use_torch_fsdp2 = false;
  a.ranks = 1;
  const train::PretrainCallbacks calls = callbacks(a);
  const virtual_time::HardwareProfile large = profile();
  EXPECT_THAT([&] { PlanSearch(a, calls, large).sweep(); },
              ::testing::ThrowsMessage<ConfigError>(
                  HasSubstr("--sweep changes keys of a file; give --use-torch-fsdp2 --fsdp2-config-path FILE")));
}

}  // namespace
}  // namespace loom::plan
