#include "sharding/full_parameters.h"

#include <cstring>
#include <unordered_map>

#include "engine/core/error.h"
#include "sharding/fsdp/fsdp_state.h"
#include "sharding/reuse_fp32.h"

namespace loom::sharding {
namespace {

// A sharded parameter and the ranks that hold it together.
struct Owner {
  const Param* param = nullptr;
  comm::ProcessGroup* ranks = nullptr;
};

// Keyed by the identity of the sharded tensor.
std::unordered_map<const void*, Owner> reshard_and_find_owners(nn::Module& root) {
  std::unordered_map<const void*, Owner> owners;
  for (FsdpState* state : FsdpState::collect(root)) {
    if (state->group() == nullptr) continue;
    state->group()->reshard();
    for (const auto& param : state->group()->params()) {
      owners[param->sharded().id()] = {param.get(), &state->group()->axes().shard.group()};
    }
  }
  return owners;
}

// The padded shards of all ranks one after another; the first rows are the parameter.
Tensor gather_on_host(const Param& param, comm::ProcessGroup& ranks, const std::string& path) {
  Shape padded = param.shape();
  padded[0] = ranks.size() * param.chunk().padded_rows;
  const Tensor full = Tensor::host(padded, param.original_dtype(), path);
  const auto bytes = static_cast<std::size_t>(param.padded_shard().nbytes());
  auto* own = static_cast<std::byte*>(full.raw()) + static_cast<std::size_t>(ranks.rank()) * bytes;
  std::memcpy(own, param.padded_shard().raw(), bytes);
  if (ranks.size() > 1) {
    const comm::GatherPart part{own, full.raw(), bytes};
    ranks.all_gather(comm::kHostLane, {&part, 1}, path);
  }
  return full.rows(0, param.shape()[0]);
}

void reshard_all(nn::Module& root) {
  for (FsdpState* state : FsdpState::collect(root)) {
    if (state->group() != nullptr) state->group()->reshard();
  }
}

// A peer may still be in a forward that reads this rank's shard where it lies (the shared gather).
void wait_for_readers(nn::Module& root) {
  std::vector<comm::Axis> axes;
  for (const FsdpState* state : FsdpState::collect(root)) axes.push_back(state->options().axes.shard);
  for (const comm::Axis& axis : distinct(axes)) {
    if (axis.size() > 1) axis.group().barrier(comm::kHostLane, "loading of weights");
  }
}

}  // namespace

void for_each_full_parameter(nn::Module& root,
                             const std::function<void(const std::string& path, const Tensor& full)>& visit,
                             const std::function<bool(const std::string& path)>& wanted) {
  require(!has_split_shards(root), "whole parameters were requested of split shards (reuse_fp32.h)");
  const auto owners = reshard_and_find_owners(root);
  for (const nn::StateEntry& entry : nn::state_dict(root)) {
    if (entry.kind != nn::StateEntry::Kind::kParameter) continue;
    if (wanted && !wanted(entry.path)) continue;
    const Tensor& value = entry.local.value;
    const auto found = owners.find(value.id());
    const Shape& together = found == owners.end() ? value.shape() : found->second.param->shape();
    if (together != entry.local.shard.global_shape) {
      config_error(
          "for_each_full_parameter: the ranks that share '{}' have {} of {} together; save its boxes "
          "(local_state_dict) "
          "instead of the whole",
          entry.path, to_string(together), to_string(entry.local.shard.global_shape));
    }
    visit(entry.path,
          found == owners.end() ? value : gather_on_host(*found->second.param, *found->second.ranks, entry.path));
  }
}

void load_full_parameters(nn::Module& root, const std::function<Tensor(const std::string& path)>& full) {
  wait_for_readers(root);
  for (const nn::StateEntry& entry : local_state_dict(root)) {
    if (entry.kind != nn::StateEntry::Kind::kParameter) continue;
    const Tensor whole = full(entry.path);
    const Shape& expected = entry.local.shard.global_shape;
    if (whole.shape() != expected) {
      config_error("parameter '{}' is {}, and {} was given for it", entry.path, to_string(expected),
                   to_string(whole.shape()));
    }
    nn::copy_box(entry.local, {whole, nn::ShardSpec::whole(expected)}, entry.path);
  }
}

nn::StateDict local_state_dict(nn::Module& root) {
  require(!has_split_shards(root), "a state dict was requested of split shards (reuse_fp32.h)");
  reshard_all(root);
  return nn::state_dict(root);
}

void load_local_state_dict(nn::Module& root, const nn::StateDict& saved) {
  reshard_all(root);
  wait_for_readers(root);
  nn::load_state_dict(root, saved);
}

}  // namespace loom::sharding
