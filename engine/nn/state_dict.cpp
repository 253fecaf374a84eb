#include "engine/nn/state_dict.h"

#include <unordered_map>

#include "engine/core/error.h"
#include "engine/core/spelling.h"

namespace loom::nn {
namespace {

using EntryIndex = std::unordered_map<std::string, const StateEntry*>;

EntryIndex by_path(const StateDict& state) {
  EntryIndex index;
  for (const StateEntry& entry : state) {
    index.emplace(entry.path, &entry);
    for (const std::string& tied : entry.tied_paths) index.emplace(tied, &entry);
  }
  return index;
}

const StateEntry* find_entry(const EntryIndex& index, const StateEntry& own) {
  if (const auto found = index.find(own.path); found != index.end()) return found->second;
  for (const std::string& tied : own.tied_paths) {
    if (const auto found = index.find(tied); found != index.end()) return found->second;
  }
  return nullptr;
}

std::string nearest_of(const std::string& path, const EntryIndex& index) {
  std::vector<std::string> paths;
  for (const auto& [known, entry] : index) paths.push_back(known);
  const auto nearest = nearest_spelling(path, paths);
  return nearest ? fmt::format("; the nearest is '{}'", *nearest) : "";
}

void check_loadable(const StateEntry& own, const StateEntry& given) {
  if (own.local.value.is_meta()) {
    config_error("load_state_dict: '{}' has no bytes to load into; materialize the model first", own.path);
  }
  const Shape& shape = own.local.value.shape();
  if (own.local.shard.global_shape != given.local.shard.global_shape) {
    config_error("load_state_dict: '{}' is {}, and {} was given for it", own.path,
                 to_string(own.local.shard.global_shape), to_string(given.local.shard.global_shape));
  }
  if (!contains(given.local.shard, given.local.value.shape(), own.local.shard, shape)) {
    config_error(
        "load_state_dict: this rank has {} of '{}', and {} was given; give a box that contains it, or the whole",
        describe_box(own.local.shard.offset, shape), own.path,
        describe_box(given.local.shard.offset, given.local.value.shape()));
  }
}

}  // namespace

StateDict state_dict(const Module& module) {
  StateDict state;
  std::unordered_map<const void*, std::size_t> index;
  for (const auto& [path, slot] : module.named_slots()) {
    if (slot->holds == SlotHolds::kGathered) {
      config_error(
          "state_dict: parameter '{}' is gathered now, and what its slot holds is a copy; reshard first "
          "(sharding::local_state_dict does)",
          path);
    }
    const auto [found, is_new] = index.emplace(slot->value.id(), state.size());
    if (is_new) {
      state.push_back({path, {}, slot->local(), StateEntry::Kind::kParameter});
    } else {
      state[found->second].tied_paths.push_back(path);
    }
  }
  for (const auto& [path, value] : persistent_buffers(module)) {
    state.push_back({path, {}, {value, ShardSpec::whole(value.shape())}, StateEntry::Kind::kBuffer});
  }
  return state;
}

std::vector<std::pair<std::string, Tensor>> persistent_buffers(const Module& module) {
  std::vector<std::pair<std::string, Tensor>> buffers;
  for (const auto& [path, below] : module.named_modules()) {
    for (const Buffer& buffer : below->own_buffers()) {
      if (buffer.persistent) buffers.emplace_back(join_path(path, buffer.name), buffer.value);
    }
  }
  return buffers;
}

void load_state_dict(Module& module, const StateDict& state) {
  const StateDict own = state_dict(module);
  const EntryIndex given = by_path(state);
  const EntryIndex known = by_path(own);
  for (const StateEntry& entry : state) {
    if (find_entry(known, entry) != nullptr) continue;
    config_error("load_state_dict: {} has no '{}'{}", module.type_name(), entry.path, nearest_of(entry.path, known));
  }
  std::vector<const StateEntry*> sources;
  for (const StateEntry& entry : own) {
    sources.push_back(find_entry(given, entry));
    if (sources.back() == nullptr) {
      config_error("load_state_dict: '{}' {} is missing{}", entry.path, to_string(entry.local.shard.global_shape),
                   nearest_of(entry.path, given));
    }
    check_loadable(entry, *sources.back());
  }
  for (std::size_t i = 0; i < own.size(); ++i) copy_box(own[i].local, sources[i]->local, own[i].path);
}

Tensor host_copy(const Tensor& tensor) {
  Tensor copy = Tensor::host(tensor.shape(), tensor.dtype(), tensor.storage()->what());
  copy.copy_from(tensor);
  return copy;
}

StateDict host_copies(const StateDict& state) {
  StateDict copies = state;
  for (StateEntry& entry : copies) entry.local.value = host_copy(entry.local.value);
  return copies;
}

}  // namespace loom::nn
