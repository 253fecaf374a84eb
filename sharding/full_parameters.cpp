#include "sharding/full_parameters.h"

#include <algorithm>
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
  const FsdpAxes* axes = nullptr;
};

// Keyed by the identity of the sharded tensor.
std::unordered_map<const void*, Owner> reshard_and_find_owners(nn::Module& root) {
  std::unordered_map<const void*, Owner> owners;
  for (FsdpState* state : FsdpState::collect(root)) {
    if (state->group() == nullptr) continue;
    state->group()->reshard();
    for (const auto& param : state->group()->params()) {
      owners[param->sharded().id()] = {param.get(), &state->group()->axes()};
    }
  }
  return owners;
}

// `bytes` of every rank of the axis, one after another, behind those of the ranks before.
std::vector<std::byte> all_of(const comm::Axis& axis, const void* own, std::size_t bytes, const std::string& path) {
  std::vector<std::byte> all(bytes * static_cast<std::size_t>(axis.size()));
  std::byte* place = all.data() + static_cast<std::size_t>(axis.rank()) * bytes;
  std::memcpy(place, own, bytes);
  if (axis.size() > 1) {
    const comm::GatherPart part{place, all.data(), bytes};
    axis.group().all_gather(comm::kHostLane, {&part, 1}, path);
  }
  return all;
}

// The box of this rank before the cut: the padded shards of the shard axis put together.
nn::LocalTensor gathered_box(const Param& param, const comm::Axis& shard, const std::string& path) {
  const nn::LocalTensor box{Tensor::host(param.shape(), param.original_dtype(), path),
                            nn::ShardSpec::whole(param.shape())};
  const auto bytes = static_cast<std::size_t>(param.padded_shard().nbytes());
  const std::vector<std::byte> shards = all_of(shard, param.padded_shard().raw(), bytes, path);
  const int dim = param.shard_dim();
  for (int rank = 0; rank < shard.size(); ++rank) {
    const Chunk chunk = chunk_of(param.shape()[dim], rank, shard.size());
    nn::LocalTensor part{{}, box.shard};
    Shape shape = param.shape();
    shape[dim] = chunk.rows;
    part.shard.offset[static_cast<std::size_t>(dim)] = chunk.row_begin;
    part.value = Tensor::host(shape, param.original_dtype(), path);
    std::memcpy(part.value.raw(), shards.data() + static_cast<std::size_t>(rank) * bytes,
                static_cast<std::size_t>(part.value.nbytes()));
    nn::paste_box(box, part, path);
  }
  return {box.value, param.gathered_box()};
}

// The whole parameter, of the boxes that the ranks of `parts` have. Boxes differ in size where a dim does not divide.
Tensor put_together(const nn::LocalTensor& own, const comm::Axis& parts, const std::string& path) {
  const nn::LocalTensor whole{Tensor::host(own.shard.global_shape, own.value.dtype(), path),
                              nn::ShardSpec::whole(own.shard.global_shape)};
  std::vector<std::int64_t> box = own.shard.offset;
  const std::size_t dims = box.size();
  box.insert(box.end(), own.value.shape().sizes().begin(), own.value.shape().sizes().end());
  const std::vector<std::byte> boxes = all_of(parts, box.data(), box.size() * sizeof(std::int64_t), path);
  std::vector<nn::LocalTensor> all;
  std::size_t most = 0;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(parts.size()); ++rank) {
    std::memcpy(box.data(), boxes.data() + rank * box.size() * sizeof(std::int64_t), box.size() * sizeof(std::int64_t));
    const auto middle = box.begin() + static_cast<std::ptrdiff_t>(dims);
    nn::ShardSpec shard = own.shard;
    shard.offset.assign(box.begin(), middle);
    all.push_back({Tensor::host(Shape({middle, box.end()}), own.value.dtype(), path), std::move(shard)});
    most = std::max(most, static_cast<std::size_t>(all.back().value.nbytes()));
  }
  std::vector<std::byte> padded(most);
  std::memcpy(padded.data(), own.value.raw(), static_cast<std::size_t>(own.value.nbytes()));
  const std::vector<std::byte> values = all_of(parts, padded.data(), most, path);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    std::memcpy(all[rank].value.raw(), values.data() + rank * most, static_cast<std::size_t>(all[rank].value.nbytes()));
    nn::paste_box(whole, all[rank], path);
  }
  return whole.value;
}

// Collective over the axes of the owner.
Tensor whole_parameter(const Owner& owner, const std::string& path) {
  const nn::LocalTensor box = gathered_box(*owner.param, owner.axes->shard, path);
  return owner.axes->parts ? put_together(box, *owner.axes->parts, path) : box.value;
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
    const Tensor full = found == owners.end() ? value : whole_parameter(found->second, entry.path);
    if (full.shape() != entry.local.shard.global_shape) {
      config_error(
          "for_each_full_parameter: the ranks that share '{}' have {} of {} together; save its boxes "
          "(local_state_dict) "
          "instead of the whole",
          entry.path, to_string(full.shape()), to_string(entry.local.shard.global_shape));
    }
    visit(entry.path, full);
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
