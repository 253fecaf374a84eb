#include "engine/plan/outside_memory.h"

#include <fmt/format.h>

#include "engine/comm/part_of_world.h"
#include "engine/comm/simulated/simulated.h"
#include "engine/core/units.h"
#include "engine/train/inputs.h"
#include "engine/virtual_time/profile.h"
#include "sharding/context/share_sequences.h"
#include "sharding/expert/share_experts.h"
#include "sharding/fsdp_axes.h"

namespace loom::plan {
namespace {

void add(comm::UsedGroups& groups, const comm::Axis& axis) { groups.add(axis.name(), axis.ranks()); }

void add(comm::UsedGroups& groups, const sharding::FsdpAxes& axes) {
  add(groups, axes.shard);
  add(groups, axes.replicate);
  if (axes.parts) add(groups, *axes.parts);
}

// The axes that sharding::options_for() makes.
void add_axes(comm::UsedGroups& groups, const sharding::ResolvedFsdp2Config& resolved, comm::World& world) {
  const auto axes = sharding::FsdpAxes::over(world, resolved.layout.shard, resolved.layout.tensor);
  add(groups, axes);
  if (const auto context = sharding::shared_context(world, resolved.sequences, resolved.layout.tensor)) {
    for (const dist::Channel* channel : {&context->ring, &context->ulysses}) {
      groups.add(channel->ranks->name(), channel->ranks->ranks());
    }
  }
  if (!resolved.experts.paths.empty()) {
    add(groups, sharding::expert_axes(world, resolved.experts.ranks, resolved.experts.shards));
  }
  const auto& reshard = resolved.options.reshard_after_forward;
  if (reshard && reshard->ranks()) add(groups, axes.shard.consecutive(*reshard->ranks(), "post_forward"));
}

}  // namespace

std::int64_t OutsideMemory::communicator_bytes() const {
  std::int64_t sum = 0;
  for (const Communicator& communicator : communicators) sum += communicator.bytes;
  return sum;
}

OutsideMemory outside_memory(const virtual_time::HardwareProfile& profile, std::span<const comm::UsedGroup> groups) {
  OutsideMemory outside{.context_bytes = profile.memory.context_bytes};
  const auto& each = profile.memory.communicator;
  if (!each) return outside;
  const bool nccl = each->library == virtual_time::CommLibrary::kNccl;
  outside.library = nccl ? "nccl" : "hccl";
  outside.tool = nccl ? "nvidia-smi" : "npu-smi";
  outside.buffer_bytes = each->buffer_bytes;
  for (const comm::UsedGroup& group : groups) {
    outside.communicators.push_back({.name = fmt::to_string(fmt::join(group.names, "/")),
                                     .ranks = static_cast<int>(group.ranks.size()),
                                     .bytes = each->bytes()});
  }
  return outside;
}

std::string parts_text(const OutsideMemory& outside) {
  const std::string context = fmt::format("context {}", memory_text(outside.context_bytes));
  if (outside.communicators.empty()) return context;
  std::vector<std::string> names;
  for (const Communicator& communicator : outside.communicators) {
    names.push_back(fmt::format("{} of {}{}", communicator.name, communicator.ranks, names.empty() ? " ranks" : ""));
  }
  return fmt::format("{}, {} communicator{} {} ({})", context, names.size(), names.size() == 1 ? "" : "s",
                     memory_text(outside.communicator_bytes()), fmt::join(names, ", "));
}

std::vector<comm::UsedGroup> expected_groups(const train::TrainSections& arguments,
                                             const train::TrainingInputs& inputs) {
  comm::UsedGroups groups;
  const auto world = comm::make_simulated_world(0, arguments.launch.ranks);
  const auto everyone = world->everyone();
  groups.add(everyone->name(), everyone->ranks());
  const comm::DeviceMesh mesh = comm::DeviceMesh::create(*world, inputs.dims.axes());
  add(groups, inputs.dims.loss_axis(mesh));
  if (inputs.pipeline) add(groups, mesh.axis("pp"));
  const auto of_stage = comm::part_of_world(*world, inputs.dims.degrees().pp);
  groups.add(of_stage->everyone()->name(), of_stage->everyone()->ranks());
  if (inputs.fsdp2) add_axes(groups, *inputs.fsdp2, *of_stage);
  return groups.all();
}

}  // namespace loom::plan
