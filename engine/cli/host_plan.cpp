#include "engine/cli/host_plan.h"

#include "engine/core/error.h"
#include "engine/core/log.h"
#include "engine/plan/host_memory.h"
#include "engine/virtual_time/find_profile.h"
#include "offload/available_memory.h"

namespace loom::cli {
namespace {

launch::Placement place(const launch::LaunchOptions& launch, int local_ranks) {
  const bool binds = launch.affinity.mode != launch::AffinityMode::kOff;
  std::vector<int> node_of_device;
  if (launch.numa_device) {
    node_of_device = virtual_time::find_profile(*launch.numa_device, "--numa-device").host.numa_node_of_device;
  }
  const device::HostTopology topology = binds ? device::HostTopology::detect() : device::HostTopology{};
  return launch::place_ranks(launch.affinity, topology, local_ranks, node_of_device);
}

std::optional<plan::HostNeed> need_of_step(const job::Job& arguments, const train::PretrainCallbacks& callbacks,
                                           const train::TrainingInputs& inputs) {
  if (!plan::keeps_on_host(arguments.optimizer, arguments.swap, inputs)) return plan::HostNeed{};
  try {
    return plan::plan_host_need(arguments, callbacks, inputs);
  } catch (const Error& error) {
    log_warning("host memory: the step cannot be planned, so what it keeps there is not checked ({})", error.what());
    return std::nullopt;
  }
}

void check(const plan::HostNeed& need, int local_ranks) {
  if (need.bytes == 0) return;
  if (const auto available = offload::available_memory()) {
    offload::check_host_memory(need.bytes, local_ranks, *available);
  } else {
    log_warning("host memory: this system does not say how much is available, so {} bytes a rank are not checked",
                need.bytes);
  }
}

}  // namespace

const launch::RankCores& HostPlan::cores(int rank_of_process) const {
  return placement.ranks.at(static_cast<std::size_t>(first_local_rank + rank_of_process));
}

offload::HostAllocatorOptions HostPlan::memory_of(int rank_of_process) const {
  offload::HostAllocatorOptions options = memory;
  options.node = cores(rank_of_process).node;
  return options;
}

HostPlan plan_host(const job::Job& arguments, const train::PretrainCallbacks& callbacks,
                   const train::TrainingInputs& inputs, const launch::Start& launched) {
  const int local_ranks = launched.local_ranks(arguments.launch.ranks);
  const bool is_process = launched.ranks_are_processes();
  HostPlan host;
  host.placement = place(arguments.launch, local_ranks);
  host.first_local_rank = is_process ? launched.local_process : 0;
  host.memory.ranks_of_process = is_process ? 1 : local_ranks;
  // A launcher may give each process cores of its own: what this one knows of the others' is not what they get.
  if (is_process && !host.placement.notes.empty()) {
    host.placement.notes = {host.placement.notes.at(static_cast<std::size_t>(host.first_local_rank))};
  }
  if (const auto need = need_of_step(arguments, callbacks, inputs)) {
    check(*need, local_ranks);
    host.memory.pinned_pool_bytes = static_cast<std::size_t>(need->pinned_bytes);
  }
  return host;
}

}  // namespace loom::cli
