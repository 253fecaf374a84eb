#include "engine/plan/planned_rank.h"

#include <algorithm>
#include <fmt/format.h>

#include "engine/core/shown_path.h"
#include "engine/nn/call_stack.h"
#include "engine/nn/make_rank.h"
#include "engine/plan/dry_reads_of_plan.h"
#include "engine/plan/load_and_save.h"
#include "models/decoder/expert_load.h"
#include "offload/activation_swap.h"
#include "sharding/marks.h"

namespace loom::plan {
namespace {

// Optimizer state is there after the first; the allocator's cache has settled after the third at the latest.
constexpr int kStepsBefore = 3;

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

// What the caches of the allocators hold: a step that leaves it as it was is followed by steps like itself.
struct CacheState {
  explicit CacheState(const device::DeviceMemory& memory) {
    for (const device::PoolStats& pool : memory.pools()) {
      sizes.insert(sizes.end(), {pool.reserved_bytes, pool.allocated_bytes, pool.largest_free_bytes});
    }
    for (const auto& stats : {std::optional(memory.stats().allocator), memory.compared()}) {
      if (stats) sizes.insert(sizes.end(), {stats->allocated_bytes, stats->reserved_bytes, stats->segments});
    }
  }
  bool operator==(const CacheState&) const = default;

  std::vector<std::int64_t> sizes;
};

// Says in which phase, at which group and on which rank memory ended.
[[noreturn]] void raise_where(const OutOfMemoryError& error, std::string_view phase, const device::Recording& marks,
                              std::string_view rank) {
  const auto last = std::find_if(marks.marks.rbegin(), marks.marks.rend(), [](const device::Mark& mark) {
    return mark.kind == sharding::kGatheredMark || mark.kind == sharding::kGatherMark;
  });
  std::string group;
  if (last != marks.marks.rend()) {
    const std::string& path = marks.text(last->subject);
    group = fmt::format(", at group '{}'", shown_path(path));
  }
  throw OutOfMemoryError(fmt::format("out of memory in {}{}{}: {}", phase, group, rank, error.what()));
}

}  // namespace

PlannedRank::PlannedRank(const PlannedJob& job, int rank, const train::HiddenStates& hidden)
    : job_(job),
      arguments_(job.recorded_arguments()),
      rank_(rank),
      context_(rank, arguments_.launch.ranks),
      scope_(context_),
      device_(set_up_planned_rank(context_, arguments_.kernels, arguments_.memory, job.profile, job.capacity_bytes)),
      used_(std::make_shared<comm::UsedGroups>()),
      world_(comm::make_simulated_world(rank, arguments_.launch.ranks, used_)),
      marks_(device_, {.entries = false}) {
  if (arguments_.memory.record_allocator) {
    origins_.emplace(device_, device::RecorderOptions{.entries = false, .allocator = true});
  }
  context_.slot<models::ExpertLoad>().shares = arguments_.parallel.expert_load;
  context_.slot<train::HiddenStates>() = hidden;
}

device::Recording PlannedRank::record() {
  return saying_where([&] {
    built_ = build();
    PhaseWatch phases(phase_);
    trainer_->set_observers({&phases});
    // A watch counts the entries of one recorded step.
    const int unrecorded = arguments_.swap.smart_swap_watch == nullptr ? 1 : kStepsBefore;
    if (job_.traced) first_ = recorded_step();
    for (int step = job_.traced ? 1 : 0; step < unrecorded; ++step) trainer_->step();
    for (int before = unrecorded;; ++before) {
      const CacheState cache(device_.memory());
      marks_.clear();
      if (origins_) origins_->clear();
      device::Recording recording = recorded_step();
      if (before == kStepsBefore || cache == CacheState(device_.memory())) return recording;
    }
  });
}

PhaseMemory PlannedRank::load(const nn::OptimizerState* state) {
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

PhaseMemory PlannedRank::save() {
  phase_ = "save";
  return saying_where([&] {
    const device::Recorder recorder(device_, {.entries = false, .memory = true});
    save_on_device(*trainer_);
    PhaseMemory save = phase_memory("save", recorder.recording());
    save.host_bytes = host_bytes_of_save(*trainer_, arguments_.checkpoint);
    return save;
  });
}

// A dry device records collectives and makes none. Messages go over the communicator of the pipeline.
std::vector<comm::UsedGroup> PlannedRank::used_groups(const device::Recording& recording) const {
  for (const device::Entry& entry : recording.entries) {
    if (entry.kind != device::EntryKind::kCollective || is_message(entry)) continue;
    used_->add(std::string(recording.text(entry.axis)), recording.group(entry.group));
  }
  return used_->all();
}

template <class Run>
std::invoke_result_t<Run> PlannedRank::saying_where(Run run) {
  try {
    return run();
  } catch (const OutOfMemoryError& error) {
    raise_where(error, phase_, marks_.recording(), job_.inputs.pipeline ? fmt::format(", on rank {}", rank_) : "");
  }
}

PhaseMemory PlannedRank::build() {
  const device::Recorder recorder(device_, {.entries = false, .memory = true});
  trainer_.emplace(arguments_, job_.callbacks, job_.recorded_inputs(), *world_);
  return phase_memory("load", recorder.recording());
}

bool PlannedRank::swaps() const {
  const auto& fsdp2 = job_.inputs.fsdp2;
  return arguments_.swap.swaps() || (fsdp2 && (!fsdp2->offloaded.empty() || !fsdp2->swapped.empty()));
}

device::Recording PlannedRank::recorded_step() {
  nn::CallSites sites;
  device::RecorderOptions recorded{.memory = true, .allocator = origins_.has_value()};
  if (job_.traced || swaps() || recorded.allocator) recorded.call_site = [&sites] { return sites.running(); };
  if (arguments_.swap.smart_swap_watch != nullptr) arguments_.swap.smart_swap_watch->seen.clear();
  const device::Recorder recorder(device_, recorded);
  trainer_->step();
  return recorder.recording();
}

}  // namespace loom::plan
