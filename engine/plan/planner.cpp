#include "engine/plan/planner.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <unordered_set>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/observe/schedule_view.h"
#include "engine/plan/host_memory.h"
#include "engine/plan/load_and_save.h"
#include "engine/plan/on_all_cores.h"
#include "engine/plan/plan_fp8.h"
#include "engine/plan/plan_memory.h"
#include "engine/plan/planned_rank.h"
#include "engine/train/inputs.h"
#include "engine/train/schedule/pipeline_time.h"
#include "engine/train/step/step_flops.h"
#include "engine/train/step_volume.h"
#include "engine/train/trainer.h"
#include "engine/virtual_time/resolve.h"
#include "models/mixin/activation_swap.h"
#include "models/mixin/fsdp2_mixin.h"

namespace loom::plan {
namespace {

using device::Entry;

// As Module::parameter_count(): tied ones once.
std::int64_t trained_parameters(const nn::Module& model) {
  std::int64_t count = 0;
  std::unordered_set<const void*> seen;
  for (const auto& [path, slot] : model.named_slots()) {
    if (slot->value.requires_grad() && seen.insert(slot->value.id()).second) {
      count += slot->shard.global_shape.numel();
    }
  }
  return count;
}

using NamedModules = std::vector<std::pair<std::string, nn::Module*>>;

SwappedModules swapped_modules(const offload::SwapBlock& block, const NamedModules& modules) {
  SwappedModules swapped{.block = block.path, .modules = {}};
  for (const auto& [path, module] : modules) {
    if (std::ranges::find(block.inside, module) != block.inside.end()) swapped.modules.push_back(path);
  }
  if (swapped.modules.empty()) swapped.modules.push_back(block.path);
  return swapped;
}

// The blocks of which something leaves the device; paths are relative to the sharded module.
std::vector<SwappedModules> swapped_modules(nn::Module& model, const offload::SwapOptions& swap,
                                            const train::TrainingInputs& inputs) {
  models::SwapRequest request;
  if (inputs.fsdp2)
    request = {.offloaded = inputs.fsdp2->offloaded,
               .pin_memory = false,
               .wrapped = inputs.fsdp2->wrapped,
               .by_path = inputs.fsdp2->swapped};
  const NamedModules modules = model.named_modules();
  std::vector<SwappedModules> all;
  for (const offload::SwapBlock& block : models::swapped_blocks(model, request, swap)) {
    all.push_back(swapped_modules(block, modules));
  }
  return all;
}

// The dtype in which most of the arithmetic is done.
DType compute_dtype(const device::Recording& recording) {
  std::map<DType, double> flops;
  for (const Entry& entry : recording.entries) {
    if (entry.cost.unit == device::Unit::kMatrix) flops[entry.cost.dtype] += entry.cost.flops;
  }
  const auto most =
      std::max_element(flops.begin(), flops.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == flops.end() ? DType::kF32 : most->first;
}

std::vector<virtual_time::RankRecording> recordings_of(const StepEstimate& plan) {
  std::vector<virtual_time::RankRecording> recordings;
  for (const PlannedRun& run : plan.runs) recordings.push_back({run.rank, &run.recording});
  return recordings;
}

void resolve_times(StepEstimate& plan, const virtual_time::TimeModel& model) {
  const std::vector<virtual_time::RankRecording> recordings = recordings_of(plan);
  virtual_time::VirtualTimes counted = virtual_time::resolve(recordings, model);
  plan.time.step_ns = counted.end_ns;
  plan.time.device_bound_ns = virtual_time::resolve(recordings, model, virtual_time::HostCosts::kFree).end_ns;
  for (std::size_t i = 0; i < plan.runs.size(); ++i) plan.runs[i].times = std::move(counted.ranks[i]);
}

// Of the rank that is shown.
void break_down_time(TimeEstimate& plan, const PlannedRun& run) {
  const device::Recording& recording = run.recording;
  for (std::size_t i = 0; i + 1 < run.times.phases.size(); ++i) {
    const virtual_time::PhaseTime &from = run.times.phases[i], &to = run.times.phases[i + 1];
    const std::string& phase = recording.text(recording.entry(from.entry).name);
    auto known = std::find_if(plan.phases.begin(), plan.phases.end(),
                              [&](const PhaseTime& time) { return time.phase == phase; });
    if (known == plan.phases.end()) known = plan.phases.insert(known, PhaseTime{.phase = phase});
    known->host_ns += to.host_ns - from.host_ns;
    known->compute_ns += to.compute_ns - from.compute_ns;
  }
  plan.breakdown = virtual_time::break_down(recording, run.times, 0, plan.step_ns);
  plan.exposed = virtual_time::exposed_by_axis(recording, run.times, 0, plan.step_ns);
}

ThroughputEstimate throughput_plan(const train::TrainSections& arguments, const std::vector<PlannedRun>& runs,
                                   const virtual_time::TimeModel& model, std::int64_t step_ns) {
  ThroughputEstimate plan;
  plan.tokens = std::int64_t{arguments.schedule.global_batch_size} * arguments.data.seq_length;
  const double seconds = static_cast<double>(step_ns) * 1e-9;
  plan.tokens_per_s = static_cast<double>(plan.tokens) / seconds;
  plan.tokens_per_s_per_device = plan.tokens_per_s / arguments.launch.ranks;
  const auto ranks = static_cast<double>(runs.size());
  for (const PlannedRun& run : runs) {
    plan.model_flops += train::model_flops(run.recording) / ranks;
    plan.hardware_flops += train::arithmetic_flops(run.recording) / ranks;
  }
  const auto& peaks = model.profile().matrix.peak_flops_per_s;
  const auto peak = peaks.find(compute_dtype(runs.front().recording));
  if (peak == peaks.end()) return plan;
  plan.mfu = plan.model_flops / seconds / peak->second;
  plan.hfu = plan.hardware_flops / seconds / peak->second;
  return plan;
}

void describe_job(StepEstimate& plan, const train::TrainSections& arguments, const train::TrainingInputs& inputs,
                  train::Trainer& trainer, const virtual_time::HardwareProfile& profile) {
  plan.model = models::sharded_module(trainer.model()).type_name();
  plan.parameters = trainer.model().parameter_count();
  plan.trained_parameters = trained_parameters(trainer.model());
  plan.device = profile.name;
  plan.software = profile.software;
  if (profile.fp8) {
    plan.software +=
        fmt::format(", FP8 {}{}", profile.fp8->recipe.name, profile.fp8->gathers ? " with its gathers" : "");
  }
  plan.world = arguments.launch.ranks;
  plan.micro_batch = arguments.schedule.micro_batch_size;
  plan.micro_batches =
      trainer.dims().micro_batches(arguments.schedule.global_batch_size, arguments.schedule.micro_batch_size);
  plan.seq_length = arguments.data.seq_length;
  plan.warnings = inputs.objective.loaders.warnings;
  if (!inputs.fsdp2) return;
  plan.mode = sharding::describe_mode(inputs.fsdp2->layout.replicate, inputs.fsdp2->layout.shard);
  plan.warnings.insert(plan.warnings.end(), inputs.fsdp2->warnings.begin(), inputs.fsdp2->warnings.end());
}

AllocatorEstimate describe_allocator(const train::MemoryOptions& memory, const virtual_time::HardwareProfile& profile,
                                     const device::DeviceMemory& device) {
  AllocatorEstimate allocator;
  allocator.expandable_segments = memory.allocator(profile.memory.alloc_conf).expandable_segments;
  allocator.conf = memory.alloc_conf.empty() ? profile.memory.alloc_conf : memory.alloc_conf;
  const std::string usual = profile.memory.alloc_conf.empty() ? "PyTorch's default" : "profile " + profile.name;
  allocator.from = memory.alloc_conf.empty() ? usual : "as given";
  if (const auto other = device.compared()) allocator.other_peak_reserved_bytes = other->peak_reserved_bytes;
  return allocator;
}

// What the device says; the rest follows from the recording.
void measure_device(MemoryEstimate& memory, device::Device& device, const PlannedJob& job) {
  const device::MemStats stats = device.memory().stats();
  memory.steady_allocated_bytes = stats.allocator.allocated_bytes;
  memory.reserved_bytes = stats.allocator.reserved_bytes;
  memory.host_bytes = device.host_memory().stats().peak_bytes;
  memory.allocator = describe_allocator(job.arguments.memory, job.profile, device.memory());
  memory.pools = device.memory().pools();
  memory.pools_by_life = job.arguments.memory.memory_fragmentation;
  memory.workspace_bytes = job.profile.memory.matrix_workspace_bytes;
  measure_host(memory, job.profile, job.arguments.launch.ranks);
  if (const auto problem = host_too_small(memory, job.profile); problem && job.capacity_bytes) {
    throw HostMemoryError(*problem);
  }
}

// "load" before the phases of the step, "save" behind them.
void add_load_and_save(MemoryEstimate& memory, const PlannedJob& job, PlannedRank& rank, int number) {
  if (job.arguments.checkpoint.save) memory.phases.push_back(rank.save());
  if (!job.arguments.checkpoint.load) {
    if (job.inputs.weights) memory.phases.insert(memory.phases.begin(), rank.built());
    return;
  }
  std::optional<nn::OptimizerState> state;
  if (loads_optimizer(job.arguments.checkpoint)) state = saved_state(rank.trainer());
  PlannedRank loading(job, number, rank.hidden());
  memory.phases.insert(memory.phases.begin(), loading.load(state ? &*state : nullptr));
}

std::int64_t bytes_left(const train::MemoryOptions& memory, const virtual_time::HardwareProfile& profile,
                        const OutsideMemory& outside) {
  return memory.device_memory_mib > 0 ? memory.device_memory_bytes() : profile.memory.capacity_bytes - outside.bytes();
}

// As bytes_left(), or OutOfMemoryError if that is nothing.
std::int64_t allocator_limit(const train::MemoryOptions& memory, const virtual_time::HardwareProfile& profile,
                             const OutsideMemory& outside) {
  const std::int64_t limit = bytes_left(memory, profile, outside);
  if (limit > 0) return limit;
  throw OutOfMemoryError(fmt::format(
      "out of memory before the first allocation: the device has {}, and outside the allocator are {}: {}; use fewer "
      "axes of ranks{}",
      memory_text(profile.memory.capacity_bytes), memory_text(outside.bytes()), parts_text(outside),
      outside.library.empty()
          ? ""
          : fmt::format(", or a smaller {}_BUFFSIZE", outside.library == "nccl" ? "NCCL" : "HCCL")));
}

// What a planned rank says before the times are known.
struct RankPlan {
  PlannedRun run = {};
  MemoryEstimate memory = {};
  std::vector<sharding::AxisVolume> volume = {};
  std::vector<SwappedModules> swapped = {};
  std::vector<comm::UsedGroup> used = {};
  std::int64_t parameters = 0, frozen = 0;
  virtual_time::HardwareProfile profile = {};  // that knows its layers
  train::HiddenStates hidden = {};             // what it sends to other stages
};

// A rank's record of few micro-batches does not say how the others go.
struct NotSteady {};

std::size_t place_of(const PlannedJob& job, int number) {
  const auto ranks = static_cast<int>(job.inputs.pipeline->lists.size());
  return static_cast<std::size_t>(number / (job.arguments.launch.ranks / ranks));
}

// `plan`, unless null, gets the description of the job.
RankPlan plan_rank(const PlannedJob& job, int number, const train::HiddenStates& hidden, StepEstimate* plan) {
  PlannedRank rank(job, number, hidden);
  RankPlan of_rank{.run = {.rank = number, .recording = rank.record(), .times = {}}};
  if (job.few != nullptr) {
    auto whole = with_repeats(of_rank.run.recording, job.few->parts.at(place_of(job, number)));
    if (!whole) throw NotSteady();
    of_rank.run.recording = std::move(*whole);
  }
  const device::Recording& recording = of_rank.run.recording;
  train::Trainer& trainer = rank.trainer();
  nn::Module& model = models::sharded_module(trainer.model());
  if (plan != nullptr) describe_job(*plan, job.arguments, job.inputs, trainer, job.profile);
  of_rank.profile = with_layers(job.profile, model);
  measure_device(of_rank.memory, rank.device(), job);
  measure_memory(of_rank.memory, recording);
  of_rank.volume = train::step_volume(trainer, job.arguments, recording);
  of_rank.swapped = swapped_modules(model, job.arguments.swap, job.inputs);
  of_rank.parameters = trainer.model().parameter_count();
  of_rank.frozen = of_rank.parameters - trained_parameters(trainer.model());
  of_rank.used = rank.used_groups(recording);
  of_rank.hidden = rank.hidden();
  add_load_and_save(of_rank.memory, job, rank, number);
  return of_rank;
}

// In the order of the pipeline, from the rank with the first stage on. The others get hidden states like its own.
std::vector<RankPlan> plan_ranks(StepEstimate& plan, const PlannedJob& job) {
  const auto& pipeline = job.inputs.pipeline;
  const int places = pipeline ? static_cast<int>(pipeline->lists.size()) : 1;
  const int first = pipeline ? static_cast<int>(pipeline->stages.front().rank) : 0;
  const auto number = [&](int place) { return (first + place) % places * (job.arguments.launch.ranks / places); };
  std::vector<RankPlan> ranks(static_cast<std::size_t>(places));
  ranks.front() = plan_rank(job, number(0), {}, &plan);
  on_all_cores(ranks.size() - 1, [&](std::size_t i) {
    ranks[i + 1] = plan_rank(job, number(static_cast<int>(i) + 1), ranks.front().hidden, nullptr);
  });
  for (RankPlan& rank : ranks) {
    plan.runs.push_back(std::move(rank.run));
    for (const observe::WastedPrefetch& wasted : observe::view_schedule(plan.runs.back().recording).wasted) {
      std::string text = observe::to_text(wasted);
      if (std::ranges::find(plan.warnings, text) == plan.warnings.end()) plan.warnings.push_back(std::move(text));
    }
  }
  return ranks;
}

// What the recipe of FP8 knows of the layers of all ranks.
virtual_time::HardwareProfile profile_of(std::vector<RankPlan>& ranks) {
  virtual_time::HardwareProfile profile = std::move(ranks.front().profile);
  for (std::size_t i = 1; i < ranks.size() && profile.fp8; ++i) {
    const virtual_time::Fp8Products& own = *ranks[i].profile.fp8;
    profile.fp8->wide.insert(own.wide.begin(), own.wide.end());
    profile.fp8->casts.insert(own.casts.begin(), own.casts.end());
    profile.fp8->gathered.insert(own.gathered.begin(), own.gathered.end());
  }
  return profile;
}

PipelineEstimate describe_pipeline(const train::PipelinePlan& pipeline, const StepEstimate& plan,
                                   const std::vector<RankPlan>& ranks) {
  PipelineEstimate estimate{.schedule = pipeline.schedule_name};
  const train::PipelineFigures figures = train::pipeline_figures(pipeline.schedule);
  const int width = plan.world / static_cast<int>(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const PlannedRun& run = plan.runs[i];
    StageEstimate stage = describe_rank(pipeline, figures, run.rank / width);
    stage.rank = run.rank;
    stage.parameters = ranks[i].parameters;
    stage.peak_allocated_bytes = ranks[i].memory.peak_allocated_bytes;
    stage.peak_reserved_bytes = ranks[i].memory.peak_reserved_bytes;
    measure_time(stage, run.recording, run.times, plan.time.step_ns);
    estimate.ranks.push_back(std::move(stage));
  }
  std::ranges::sort(estimate.ranks, {}, &StageEstimate::rank);
  add_up(estimate, plan.time.step_ns);
  return estimate;
}

// All but what the communicators take. NotSteady where few micro-batches were recorded.
StepEstimate plan_recorded(const PlannedJob& job, std::vector<comm::UsedGroup>& used) {
  StepEstimate plan;
  std::vector<RankPlan> ranks = plan_ranks(plan, job);
  const auto reserved = [](const RankPlan& rank) { return rank.memory.peak_reserved_bytes; };
  plan.shown = static_cast<std::size_t>(std::ranges::max_element(ranks, {}, reserved) - ranks.begin());
  const virtual_time::TimeModel model(profile_of(ranks));
  resolve_times(plan, model);
  RankPlan& shown = ranks[plan.shown];
  if (job.inputs.pipeline) {
    plan.parameters = plan.trained_parameters = job.inputs.pipeline->parameters;
    for (const RankPlan& rank : ranks) plan.trained_parameters -= rank.frozen;
    plan.pipeline = describe_pipeline(*job.inputs.pipeline, plan, ranks);
  }
  plan.memory = std::move(shown.memory);
  plan.volume = std::move(shown.volume);
  plan.communication = observe::sum_collectives(plan.run().recording, model);
  break_down_time(plan.time, plan.run());
  plan.throughput = throughput_plan(job.arguments, plan.runs, model, plan.time.step_ns);
  plan.swaps = estimate_swap(plan.run().recording, plan.run().times, shown.swapped);
  used = std::move(shown.used);
  return plan;
}

// The same, with all micro-batches recorded where few do not say how the others go.
StepEstimate plan_step(PlannedJob job, std::vector<comm::UsedGroup>& used) {
  try {
    return plan_recorded(job, used);
  } catch (const NotSteady&) {
    job.few = nullptr;
    return plan_recorded(job, used);
  }
}

// The figures that follow from what is outside the allocator.
void set_outside(MemoryEstimate& memory, const PlannedJob& job, const OutsideMemory& outside) {
  memory.outside = outside;
  memory.capacity_bytes = std::max<std::int64_t>(0, bytes_left(job.arguments.memory, job.profile, outside));
  memory.shown_bytes = memory.reserved_bytes + outside.bytes();
}

// Within what `outside` leaves, unless the capacity is lifted.
StepEstimate plan_beside(const OutsideMemory& outside, PlannedJob job, Capacity capacity,
                         std::vector<comm::UsedGroup>& used) {
  const train::MemoryOptions& options = job.arguments.memory;
  if (capacity == Capacity::kOfTheProfile) job.capacity_bytes = allocator_limit(options, job.profile, outside);
  StepEstimate plan;
  try {
    plan = plan_step(job, used);
  } catch (const HostMemoryError&) {
    throw;
  } catch (const OutOfMemoryError& error) {
    if (options.device_memory_mib > 0 || outside.bytes() == 0) throw;
    throw OutOfMemoryError(fmt::format("{}\n  outside the allocator are {} of the device's {}: {}", error.what(),
                                       memory_text(outside.bytes()), memory_text(job.profile.memory.capacity_bytes),
                                       parts_text(outside)));
  }
  set_outside(plan.memory, job, outside);
  return plan;
}

}  // namespace

std::int64_t capacity_of(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
                         const virtual_time::HardwareProfile& profile) {
  if (arguments.memory.device_memory_mib > 0) return arguments.memory.device_memory_bytes();
  const train::TrainingInputs inputs = train::read_inputs(arguments, callbacks);
  return allocator_limit(arguments.memory, profile, outside_memory(profile, expected_groups(arguments, inputs)));
}

StepEstimate estimate_step(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
                           const virtual_time::HardwareProfile& profile, Capacity capacity,
                           const train::EditConfig& edit) {
  const train::TrainingInputs inputs = train::read_inputs(arguments, callbacks, edit);
  // The allocator's events are those of the whole step.
  std::optional<FewMicroBatches> few;
  if (!arguments.memory.record_allocator) few = few_micro_batches(arguments, callbacks, inputs, edit);
  const PlannedJob job{arguments, callbacks, inputs, profile, std::nullopt, few ? &*few : nullptr};
  std::vector<comm::UsedGroup> used;
  const OutsideMemory expected = outside_memory(profile, expected_groups(arguments, inputs));
  StepEstimate plan = plan_beside(expected, job, capacity, used);
  const OutsideMemory outside = outside_memory(profile, used);
  const bool limits = capacity == Capacity::kOfTheProfile && arguments.memory.device_memory_mib == 0;
  if (limits && outside.bytes() != expected.bytes()) return plan_beside(outside, job, capacity, used);
  set_outside(plan.memory, job, outside);
  return plan;
}

}  // namespace loom::plan
