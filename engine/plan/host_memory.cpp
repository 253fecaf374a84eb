#include "engine/plan/host_memory.h"

#include <algorithm>
#include <fmt/core.h>

#include "engine/comm/simulated/simulated.h"
#include "engine/core/units.h"
#include "engine/device/device.h"
#include "engine/device/pinned_bytes.h"
#include "engine/nn/make_rank.h"
#include "engine/plan/dry_reads_of_plan.h"
#include "engine/train/trainer.h"

namespace loom::plan {
namespace {

// The optimizer's state is there after the first; the second has all of a step's host memory beside it.
constexpr int kSteps = 2;

}  // namespace

bool keeps_on_host(const train::OptimizerOptions& optimizer, const offload::SwapOptions& swap,
                   const train::TrainingInputs& inputs) {
  if (swap.swaps() || optimizer.swap_optimizer || optimizer.kind == train::OptimizerKind::kAdamSwap) {
    return true;
  }
  if (!inputs.fsdp2) return false;
  return inputs.fsdp2_config->offload_to_cpu || !inputs.fsdp2->offloaded.empty() || !inputs.fsdp2->swapped.empty();
}

HostNeed plan_host_need(const train::TrainSections& arguments, const train::PretrainCallbacks& callbacks,
                        const train::TrainingInputs& inputs) {
  if (!keeps_on_host(arguments.optimizer, arguments.swap, inputs)) return {};
  RankContext context(0, arguments.launch.ranks);
  const RankScope scope(context);
  device::Device& device = nn::make_rank(context, {.device = {.dry_run = true}, .kernels = arguments.kernels.fused});
  refuse_reads_of_values(context);
  const auto world = comm::make_simulated_world(0, arguments.launch.ranks);
  train::Trainer trainer(arguments, callbacks, inputs, *world);
  for (int step = 0; step < kSteps; ++step) trainer.step();
  return {.bytes = device.host_memory().stats().peak_bytes, .pinned_bytes = context.slot<device::PinnedBytes>().peak()};
}

void measure_host(MemoryEstimate& memory, const virtual_time::HardwareProfile& profile, int world) {
  memory.host_devices = std::min<std::int64_t>(world, profile.devices_per_node());
  memory.host_capacity_bytes = profile.host.memory_bytes;
  memory.host_fits =
      memory.host_capacity_bytes == 0 || memory.host_bytes <= memory.host_capacity_bytes / memory.host_devices;
}

std::optional<std::string> host_too_small(const MemoryEstimate& memory, const virtual_time::HardwareProfile& profile) {
  if (memory.host_fits) return std::nullopt;
  return fmt::format(
      "out of host memory: each device keeps {} bytes ({:.2f} GiB) on its host, {} devices of a host {:.2f} GiB, and a "
      "host of {} has {} bytes ({:.2f} GiB; host.memory_bytes of the profile); keep less on the host, or use more "
      "devices",
      memory.host_bytes, gib(memory.host_bytes), memory.host_devices, gib(memory.host_bytes * memory.host_devices),
      profile.name, memory.host_capacity_bytes, gib(memory.host_capacity_bytes));
}

}  // namespace loom::plan
