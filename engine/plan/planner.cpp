#include "engine/plan/planner.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <tuple>
#include <type_traits>
#include <unordered_set>

#include "engine/comm/simulated/simulated.h"
#include "engine/core/error.h"
#include "engine/core/shown_path.h"
#include "engine/core/units.h"
#include "engine/device/recorder.h"
#include "engine/nn/call_stack.h"
#include "engine/nn/make_rank.h"
#include "engine/observe/schedule_view.h"
#include "engine/plan/dry_reads_of_plan.h"
#include "engine/plan/host_memory.h"
#include "engine/plan/load_and_save.h"
#include "engine/plan/plan_fp8.h"
#include "engine/plan/plan_memory.h"
#include "engine/train/inputs.h"
#include "engine/train/step/step_flops.h"
#include "engine/train/step_volume.h"
#include "engine/train/trainer.h"
#include "engine/virtual_time/resolve.h"
#include "models/decoder/expert_load.h"
#include "models/mixin/activation_swap.h"
#include "models/mixin/fsdp2_mixin.h"
#include "sharding/marks.h"

namespace loom::plan {
namespace {

using device::Entry;

// Optimizer state is there after the first; the allocator's cache has settled after the third.
constexpr std::int64_t kStepsBefore = 3;

// Where the run is, for errors.
class PhaseWatch final : public train::StepObserver {
 public:
  explicit PhaseWatch(std::string& phase) : phase_(phase) {}
  void begin_phase(std::string_view phase) override { phase_ = phase; }

 private:
  std::string& phase_;
};

device::Device& set_up_planned_rank(RankContext& context, const train::KernelChoice& kernels,
                                    const train::MemoryOptions& memory, const virtual_time::HardwareProfile& profile,
                                    std::optional<std::int64_t> capacity_bytes) {
  nn::RankSetup setup{.kernels = kernels.fused};
  device::DeviceOptions& options = setup.device;
  options.profile.name = profile.name;
  if (capacity_bytes) options.profile.memory_bytes = *capacity_bytes;
  options.allocator = memory.allocator(profile.memory.alloc_conf);
  options.compared = options.allocator;
  options.compared->expandable_segments = !options.allocator.expandable_segments;
  options.profile.matrix_workspace_bytes = profile.memory.matrix_workspace_bytes;
  options.dry_run = true;
  device::Device& device = nn::make_rank(context, setup);
  refuse_reads_of_values(context);
  return device;
}

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

SwappedModules swapped_modules(const offload::SwapBlock& block, const nn::Module& model) {
  SwappedModules swapped{.block = block.path, .modules = {}};
  for (const auto& [path, module] : model.named_modules()) {
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
  std::vector<SwappedModules> all;
  for (const offload::SwapBlock& block : models::swapped_blocks(model, request, swap)) {
    all.push_back(swapped_modules(block, model));
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

TimeEstimate time_plan(const device::Recording& recording, const virtual_time::TimeModel& model,
                       virtual_time::RankTimes& times) {
  const virtual_time::RankRecording rank{0, &recording};
  virtual_time::VirtualTimes counted = virtual_time::resolve({&rank, 1}, model);
  const virtual_time::VirtualTimes bound = virtual_time::resolve({&rank, 1}, model, virtual_time::HostCosts::kFree);
  TimeEstimate plan;
  plan.step_ns = counted.end_ns;
  plan.device_bound_ns = bound.end_ns;
  times = std::move(counted.ranks.front());
  for (std::size_t i = 0; i + 1 < times.phases.size(); ++i) {
    const virtual_time::PhaseTime &from = times.phases[i], &to = times.phases[i + 1];
    const std::string& phase = recording.text(recording.entry(from.entry).name);
    auto known = std::find_if(plan.phases.begin(), plan.phases.end(),
                              [&](const PhaseTime& time) { return time.phase == phase; });
    if (known == plan.phases.end()) known = plan.phases.insert(known, PhaseTime{.phase = phase});
    known->host_ns += to.host_ns - from.host_ns;
    known->compute_ns += to.compute_ns - from.compute_ns;
  }
  plan.breakdown = virtual_time::break_down(recording, times, 0, plan.step_ns);
  plan.exposed = virtual_time::exposed_by_axis(recording, times, 0, plan.step_ns);
  return plan;
}

ThroughputEstimate throughput_plan(const train::TrainSections& arguments, const device::Recording& recording,
                                   const virtual_time::TimeModel& model, std::int64_t step_ns) {
  ThroughputEstimate plan;
  plan.tokens = std::int64_t{arguments.schedule.global_batch_size} * arguments.data.seq_length;
  const double seconds = static_cast<double>(step_ns) * 1e-9;
  plan.tokens_per_s = static_cast<double>(plan.tokens) / seconds;
  plan.tokens_per_s_per_device = plan.tokens_per_s / arguments.launch.ranks;
  plan.model_flops = train::model_flops(recording);
  plan.hardware_flops = train::arithmetic_flops(recording);
  const auto& peaks = model.profile().matrix.peak_flops_per_s;
  const auto peak = peaks.find(compute_dtype(recording));
  if (peak == peaks.end()) return plan;
  plan.mfu = plan.model_flops / seconds / peak->second;
  plan.hfu = plan.hardware_flops / seconds / peak->second;
  return plan;
}

// Says in which phase, and at which group, memory ended.
[[noreturn]] void raise_where(const OutOfMemoryError& error, std::string_view phase, const device::Recording& marks) {
  const auto last = std::find_if(marks.marks.rbegin(), marks.marks.rend(), [](const device::Mark& mark) {
    return mark.kind == sharding::kGatheredMark || mark.kind == sharding::kGatherMark;
  });
  std::string group;
  if (last != marks.marks.rend()) {
    const std::string& path = marks.text(last->subject);
    group = fmt::format(", at group '{}'", shown_path(path));
  }
  throw OutOfMemoryError(fmt::format("out of memory in {}{}: {}", phase, group, error.what()));
}

// What is planned.
struct PlannedJob {
  const train::TrainSections& arguments;
  const train::PretrainCallbacks& callbacks;
  const train::TrainingInputs& inputs;
  const virtual_time::HardwareProfile& profile;
  std::optional<std::int64_t> capacity_bytes;  // of the allocator; none: unlimited
};

// A rank of the job on a dry device in a simulated world, and its trainer.
class PlannedRank {
 public:
  explicit PlannedRank(const PlannedJob& job)
      : job_(job),
        arguments_(job.arguments),
        context_(0, arguments_.launch.ranks),
        scope_(context_),
        device_(set_up_planned_rank(context_, arguments_.kernels, arguments_.memory, job.profile, job.capacity_bytes)),
        used_(std::make_shared<comm::UsedGroups>()),
        world_(comm::make_simulated_world(0, arguments_.launch.ranks, used_)),
        marks_(device_, {.entries = false}) {
    context_.slot<models::ExpertLoad>().shares = arguments_.parallel.expert_load;
  }

  // Makes the trainer, and records the step that is planned. OutOfMemoryError that says where.
  device::Recording record() {
    return saying_where([&] {
      built_ = build();
      PhaseWatch phases(phase_);
      trainer_->set_observers({&phases});
      for (std::int64_t step = 0; step < kStepsBefore; ++step) {
        marks_.clear();
        trainer_->step();
      }
      marks_.clear();
      return recorded_step();
    });
  }
  // Makes the trainer, and loads a checkpoint, with the state of its optimizer if given. OutOfMemoryError that says
  // where.
  PhaseMemory load(const nn::OptimizerState* state) {
    return saying_where([&] {
      const device::Recorder recorder(device_, {.entries = false, .memory = true});
      build();
      phase_ = "load";
      if (state != nullptr) load_on_device(*trainer_, *state);
      PhaseMemory load = phase_memory("load", recorder.recording());
      if (state != nullptr) load.host_bytes = host_bytes_of_load(*state);
      return load;
    });
  }
  // After record().
  PhaseMemory save() {
    phase_ = "save";
    return saying_where([&] {
      const device::Recorder recorder(device_, {.entries = false, .memory = true});
      save_on_device(*trainer_);
      PhaseMemory save = phase_memory("save", recorder.recording());
      save.host_bytes = host_bytes_of_save(*trainer_, arguments_.checkpoint);
      return save;
    });
  }

  // After record().
  const PhaseMemory& built() const { return built_; }  // the making of the trainer, with the weights that it reads
  train::Trainer& trainer() { return *trainer_; }
  device::Device& device() { return device_; }
  const std::vector<comm::UsedGroup>& used_groups() const { return used_->all(); }
  // A dry device records collectives and makes none.
  void add_groups(const device::Recording& recording) {
    for (const device::Entry& entry : recording.entries) {
      if (entry.kind != device::EntryKind::kCollective) continue;
      used_->add(std::string(recording.text(entry.axis)), recording.group(entry.group));
    }
  }

 private:
  template <class Run>
  std::invoke_result_t<Run> saying_where(Run run) {
    try {
      return run();
    } catch (const OutOfMemoryError& error) {
      raise_where(error, phase_, marks_.recording());
    }
  }
  PhaseMemory build() {
    const device::Recorder recorder(device_, {.entries = false, .memory = true});
    trainer_.emplace(arguments_, job_.callbacks, job_.inputs, *world_);
    return phase_memory("load", recorder.recording());
  }
  bool swaps() const {
    const auto& fsdp2 = job_.inputs.fsdp2;
    return arguments_.swap.swaps() || (fsdp2 && (!fsdp2->offloaded.empty() || !fsdp2->swapped.empty()));
  }
  device::Recording recorded_step() {
    nn::CallSites sites;
    device::RecorderOptions recorded{.memory = true};
    if (swaps()) recorded.call_site = [&sites] { return sites.running(); };
    if (arguments_.swap.smart_swap_watch != nullptr) arguments_.swap.smart_swap_watch->seen.clear();
    const device::Recorder recorder(device_, recorded);
    trainer_->step();
    return recorder.recording();
  }

  const PlannedJob& job_;
  const train::TrainSections& arguments_;
  RankContext context_;
  const RankScope scope_;
  device::Device& device_;
  const std::shared_ptr<comm::UsedGroups> used_;
  const std::unique_ptr<comm::World> world_;
  std::string phase_ = "the initialisation of the model";
  device::Recorder marks_;  // of one step at a time, for errors
  std::optional<train::Trainer> trainer_;
  PhaseMemory built_;
};

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
  if (!inputs.fsdp2) return;
  plan.mode = sharding::describe_mode(inputs.fsdp2->layout.replicate, inputs.fsdp2->layout.shard);
  plan.warnings = inputs.fsdp2->warnings;
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
void add_load_and_save(MemoryEstimate& memory, const PlannedJob& job, PlannedRank& rank) {
  if (job.arguments.checkpoint.save) memory.phases.push_back(rank.save());
  if (!job.arguments.checkpoint.load) {
    if (job.inputs.weights) memory.phases.insert(memory.phases.begin(), rank.built());
    return;
  }
  std::optional<nn::OptimizerState> state;
  if (loads_optimizer(job.arguments.checkpoint)) state = saved_state(rank.trainer());
  memory.phases.insert(memory.phases.begin(), PlannedRank(job).load(state ? &*state : nullptr));
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

// Fills in all but what the communicators take.
void plan_step(StepEstimate& plan, const PlannedJob& job, std::vector<comm::UsedGroup>& used) {
  PlannedRank rank(job);
  plan.run.recording = rank.record();
  train::Trainer& trainer = rank.trainer();
  describe_job(plan, job.arguments, job.inputs, trainer, job.profile);
  measure_device(plan.memory, rank.device(), job);
  const virtual_time::TimeModel model(with_layers(job.profile, models::sharded_module(trainer.model())));
  const device::Recording& recording = plan.run.recording;
  measure_memory(plan.memory, recording);
  plan.communication = observe::sum_collectives(recording, model);
  plan.volume = train::step_volume(trainer, job.arguments, recording);
  plan.time = time_plan(recording, model, plan.run.times);
  plan.throughput = throughput_plan(job.arguments, recording, model, plan.time.step_ns);
  plan.swaps = estimate_swap(recording, plan.run.times,
                             swapped_modules(models::sharded_module(trainer.model()), job.arguments.swap, job.inputs));
  for (const observe::WastedPrefetch& wasted : observe::view_schedule(recording).wasted) {
    plan.warnings.push_back(observe::to_text(wasted));
  }
  rank.add_groups(recording);
  used = rank.used_groups();
  add_load_and_save(plan.memory, job, rank);
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
    plan_step(plan, job, used);
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

// A plan shows one rank of many that do the same.
train::TrainingInputs inputs_of_plan(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
                                     const train::EditConfig& edit = nullptr) {
  train::TrainingInputs inputs = train::read_inputs(arguments, callbacks, edit);
  if (!inputs.pipeline) return inputs;
  config_error(
      "--pipeline-model-parallel-size is {}, and plans of pipelines are not built in this version; plan with 1, or train",
      arguments.parallel.pipeline.pipeline_model_parallel_size);
}

}  // namespace

std::int64_t capacity_of(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
                         const virtual_time::HardwareProfile& profile) {
  if (arguments.memory.device_memory_mib > 0) return arguments.memory.device_memory_bytes();
  const train::TrainingInputs inputs = inputs_of_plan(arguments, callbacks);
  return allocator_limit(arguments.memory, profile, outside_memory(profile, expected_groups(arguments, inputs)));
}

StepEstimate estimate_step(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
                           const virtual_time::HardwareProfile& profile, Capacity capacity,
                           const train::EditConfig& edit) {
  const train::TrainingInputs inputs = inputs_of_plan(arguments, callbacks, edit);
  const PlannedJob job{arguments, callbacks, inputs, profile, std::nullopt};
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
