#include "sharding/expert/share_experts.h"

#include "engine/core/error.h"
#include "sharding/cut_parameter.h"

namespace loom::sharding {
FsdpAxes expert_axes(comm::World& world, int expert_parallel_size, bool shards) {
  const auto mesh = comm::DeviceMesh::create(
      world, {{"one", 1}, {"efsdp", world.size() / expert_parallel_size}, {"ep", expert_parallel_size}});
  const comm::Axis &efsdp = mesh.axis("efsdp"), &one = mesh.axis("one");
  return {.shard = shards ? efsdp : one, .replicate = shards ? one : efsdp, .parts = mesh.axis("ep")};
}

void check_shares_experts(nn::Module& model, const std::string& path, int ranks, std::string_view where) {
  nn::Module* module = model.find(path);
  const auto* experts = dynamic_cast<const ExpertModule*>(module);
  if (experts == nullptr) {
    config_error(
        "{}: '{}' is a {}, which has no experts to share; list modules of experts, such as "
        "model.layers.{{*}}.mlp.experts",
        where, path, module->type_name());
  }
  if (experts->expert_count() % ranks == 0) return;
  config_error(
      "{}: '{}' has {} experts, which {} ranks cannot share evenly; use an expert_parallel_size that divides {}", where,
      path, experts->expert_count(), ranks, experts->expert_count());
}

void share_experts(nn::Module& model, const std::vector<std::string>& paths, const comm::Axis& axis,
                   const ExpertSharing& sharing) {
  for (const std::string& path : paths) {
    nn::Module& module = *model.find(path);
    auto& experts = dynamic_cast<ExpertModule&>(module);
    const std::int64_t own = experts.expert_count() / axis.size();
    const NamedSlots slots = module.named_slots();
    for (const auto& [name, slot] : slots) {
      Shape box = slot->value.shape();
      require(box.ndim() > 0 && box[0] == experts.expert_count(), "'{}.{}' {} has no row for each of {} experts", path,
              name, to_string(box), experts.expert_count());
      box[0] = own;
      nn::ShardSpec shard = slot->shard;
      shard.offset[0] = axis.rank() * own;
      cut_parameter(slots, *slot, shard, box);
    }
    experts.share_experts(axis, path, sharing);
  }
}

FullyShardOptions expert_options(const FullyShardOptions& options) {
  FullyShardOptions experts = options;
  experts.axes = *options.expert_axes;
  // A number of ranks is of the other groups' axis.
  if (options.reshard_after_forward && options.reshard_after_forward->ranks()) {
    experts.reshard_after_forward = ReshardAfterForward::always();
  }
  const int ranks = experts.axes.shard.size();
  experts.shard_dim = [ranks](const std::string&, const Shape& shape) {
    return shape.ndim() == 3 && ranks > 1 && shape[1] % ranks == 0 ? 1 : 0;
  };
  return experts;
}

}  // namespace loom::sharding
