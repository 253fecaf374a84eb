#include "sharding/fully_shard.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "engine/core/error.h"
#include "engine/nn/init.h"

namespace loom::sharding {
namespace {

// Modules whose parameters belong to a call on `module`: itself and the modules below, except inside wrapped modules.
// Children come before their parents.
void collect_managed(nn::Module& module, const std::string& path, std::unordered_set<nn::Module*>& seen,
                     std::vector<std::pair<std::string, nn::Module*>>& managed) {
  if (!seen.insert(&module).second) return;
  for (auto& [name, child] : module.children()) {
    if (FsdpState::of(*child) == nullptr) collect_managed(*child, nn::join_path(path, name), seen, managed);
  }
  managed.emplace_back(path, &module);
}

// "'weight' of the wrapped Linear": paths in the whole model are not known before the root's first forward.
std::string in_words(const ParamHome& home) {
  return fmt::format("'{}' of the wrapped {}", home.paths.front(), home.wrapped_type);
}

std::vector<ParamHome> collect_homes(const std::vector<nn::Module*>& modules,
                                     const std::unordered_set<const void*>& ignored) {
  std::unordered_set<nn::Module*> seen;
  std::vector<ParamHome> homes;
  std::unordered_map<const void*, std::size_t> index_of;
  for (nn::Module* module : modules) {
    std::vector<std::pair<std::string, nn::Module*>> managed;
    collect_managed(*module, "", seen, managed);
    for (auto& [path, owner] : managed) {
      for (auto& slot : owner->own_parameters()) {
        if (ignored.contains(slot->value.id())) continue;
        const auto [found, is_new] = index_of.emplace(slot->value.id(), homes.size());
        if (is_new) homes.emplace_back().wrapped_type = module->type_name();
        homes[found->second].slots.push_back(slot.get());
        homes[found->second].paths.push_back(nn::join_path(path, slot->name));
      }
    }
  }
  return homes;
}

// Attached to the bytes of a parameter that a group has taken over. The group's own slots hold shards from then on: a
// slot that still holds these bytes is tied into that group from outside.
struct TakenBy {
  std::string in_words;
};

// The modules of a list that are in no other module of it.
std::vector<nn::Module*> outermost(const std::vector<nn::Module*>& listed) {
  if (listed.empty()) config_error("fully_shard was given an empty list of modules; name at least one");
  std::vector<nn::Module*> kept;
  for (nn::Module* module : listed) {
    const bool inside = std::any_of(listed.begin(), listed.end(), [&](nn::Module* other) {
      if (other == module) return false;
      const auto below = other->named_modules();
      return std::any_of(below.begin(), below.end(), [&](const auto& entry) { return entry.second == module; });
    });
    if (!inside) kept.push_back(module);
  }
  return kept;
}

void check_wrappable(const nn::Module& module) {
  if (!module.has_forward()) {
    config_error("fully_shard of a {}: it has no forward of its own; wrap its items (for example 'layers.{{*}}')",
                 module.type_name());
  }
  if (FsdpState::of(module) != nullptr) {
    config_error("fully_shard was applied twice to one {}; each module can be wrapped once", module.type_name());
  }
}

// The module whose forward gathers contains the wrapped modules.
void check_hook_module(const std::vector<nn::Module*>& modules, nn::Module* hook_module) {
  if (hook_module == nullptr) return;
  const auto inside = hook_module->named_modules();
  for (const nn::Module* module : modules) {
    if (std::ranges::any_of(inside, [&](const auto& entry) { return entry.second == module; })) continue;
    config_error("fully_shard of a {}: hook_module is a {} that does not hold it; give a module around it, or none",
                 module->type_name(), hook_module->type_name());
  }
}

void check_shardable(const std::vector<ParamHome>& homes, const FullyShardOptions& options) {
  const int ranks = options.axes.shard.size();
  for (const ParamHome& home : homes) {
    const Shape& shape = home.slots.front()->value.shape();
    if (shape.ndim() == 0) {
      config_error("parameter {} has no dims and cannot be sharded over dim 0; give it shape [1]", in_words(home));
    }
    const int dim = options.shard_dim ? options.shard_dim(home.paths.front(), shape) : 0;
    if (dim < 0 || dim >= shape.ndim()) {
      config_error("parameter {} {} is to be cut on dim {}; use a dim from 0 to {}", in_words(home), to_string(shape),
                   dim, shape.ndim() - 1);
    }
    if (dim > 0 && shape[dim] % ranks != 0) {
      config_error(
          "parameter {} {} is to be cut on dim {} over {} ranks, which do not divide {}; use dim 0, or a factor "
          "of it",
          in_words(home), to_string(shape), dim, ranks, shape[dim]);
    }
  }
}

// A group of a module above has cut the parameter already: it would be cut twice.
void check_not_owned_above(const std::vector<ParamHome>& homes) {
  for (const ParamHome& home : homes) {
    if (home.slots.front()->holds == nn::SlotHolds::kOwn) continue;
    config_error(
        "fully_shard of a {}: a module above it is wrapped already and owns parameter '{}'; wrap from the inside out: "
        "the modules below first, the root last",
        home.wrapped_type, home.paths.front());
  }
}

void claim(const std::vector<ParamHome>& homes) {
  for (const ParamHome& home : homes) {
    const auto taken = home.slots.front()->value.storage()->attachment<TakenBy>();
    if (taken == nullptr) continue;
    config_error(
        "parameter {} is tied to {}, which another group owns; a tie must stay inside one group: wrap "
        "neither module, wrap both as one group, or untie them (tie_word_embeddings: false)",
        in_words(home), taken->in_words);
  }
  for (const ParamHome& home : homes) {
    home.slots.front()->value.storage()->attach(std::make_shared<TakenBy>(TakenBy{in_words(home)}));
  }
}

ReshardAfterForward resolve_after_forward(const FullyShardOptions& options) {
  const ReshardAfterForward chosen = options.reshard_after_forward.value_or(ReshardAfterForward::always());
  const int shard_size = options.axes.shard.size();
  const auto resolved = chosen.on(shard_size);
  if (!resolved) {
    config_error("reshard_after_forward is {}, but {} ranks share the parameters; use true, false or a factor of {}",
                 chosen.text(), shard_size, shard_size);
  }
  return *resolved;
}

FsdpState& state_of(nn::Module& module) {
  FsdpState* state = FsdpState::of(module);
  if (state == nullptr) {
    config_error("a {} is not wrapped by fully_shard; call fully_shard() on it first", module.type_name());
  }
  return *state;
}

// The states of the module alone, which must be wrapped, or of all wrapped modules from it down.
void for_each_state(nn::Module& module, bool recurse, const std::function<void(FsdpState&)>& visit) {
  if (!recurse) return visit(state_of(module));
  for (FsdpState* state : FsdpState::collect(module)) visit(*state);
}

void for_each_group(nn::Module& module, bool recurse, const std::function<void(ParamGroup&)>& visit) {
  for_each_state(module, recurse, [&](FsdpState& state) {
    if (state.group() != nullptr) visit(*state.group());
  });
}

void switch_groups(nn::Module& module, bool recurse, const std::function<void(GroupSwitches&)>& change) {
  for_each_group(module, recurse, [&](ParamGroup& group) {
    GroupSwitches switches = group.switches();
    change(switches);
    group.set_switches(switches);
  });
}

// Whose memory a group's buffers are in has one answer.
void refuse_two_memories(const nn::Module& module) {
  config_error(
      "a {} cannot have a custom all-gather or reduce-scatter and buffers from the process group: allocate() of the "
      "custom one gives the buffers; take one of them away first",
      module.type_name());
}

std::vector<FsdpState*> states_of(const std::vector<nn::Module*>& modules) {
  std::vector<FsdpState*> states;
  for (nn::Module* module : modules) states.push_back(&state_of(*module));
  return states;
}

}  // namespace

FsdpState& fully_shard(nn::Module& module, const FullyShardOptions& options) {
  return fully_shard(std::vector<nn::Module*>{&module}, options);
}

FsdpState& fully_shard(const std::vector<nn::Module*>& listed, const FullyShardOptions& options) {
  const std::vector<nn::Module*> modules = outermost(listed);
  for (const nn::Module* module : modules) check_wrappable(*module);
  check_hook_module(modules, options.hook_module);
  std::vector<ParamHome> homes = collect_homes(modules, options.ignored_params);
  const ReshardAfterForward reshard = resolve_after_forward(options);
  check_not_owned_above(homes);
  check_shardable(homes, options);
  claim(homes);
  std::unique_ptr<ParamGroup> group;
  if (!homes.empty()) {
    std::vector<std::unique_ptr<Param>> params;
    for (ParamHome& home : homes) params.push_back(std::make_unique<Param>(std::move(home), options));
    group = std::make_unique<ParamGroup>(std::move(params), options, reshard);
  }
  auto state = std::make_shared<FsdpState>(modules, options, std::move(group));
  for (nn::Module* module : modules) module->attach(state);
  state->install_hooks();
  return *state;
}

void materialize_shards(nn::Module& root) {
  for (FsdpState* state : FsdpState::collect(root)) {
    if (state->group() == nullptr) continue;
    for (const auto& param : state->group()->params()) param->materialize_shard();
  }
  nn::materialize(root);  // what no group owns
}

void set_modules_to_forward_prefetch(nn::Module& module, const std::vector<nn::Module*>& targets) {
  state_of(module).set_forward_prefetch(states_of(targets));
}

void set_modules_to_backward_prefetch(nn::Module& module, const std::vector<nn::Module*>& targets) {
  state_of(module).set_backward_prefetch(states_of(targets));
}

void set_requires_gradient_sync(nn::Module& root, bool on) {
  switch_groups(root, /*recurse=*/true, [on](GroupSwitches& s) { s.reduce_grads = s.all_reduce_grads = on; });
}

void set_requires_all_reduce(nn::Module& root, bool on) {
  switch_groups(root, /*recurse=*/true, [on](GroupSwitches& s) { s.all_reduce_grads = on; });
}

void set_is_last_backward(nn::Module& root, bool on) {
  for (FsdpState* state : FsdpState::collect(root)) state->is_last_backward = on;
}

void set_reshard_after_forward(nn::Module& module, bool on, bool recurse) {
  for_each_state(module, recurse, [on](FsdpState& state) { state.set_reshard_after_forward(on); });
}

void set_reshard_after_backward(nn::Module& module, bool on, bool recurse) {
  switch_groups(module, recurse, [on](GroupSwitches& s) { s.reshard_after_backward = on; });
}

void set_unshard_in_backward(nn::Module& module, bool on) {
  switch_groups(module, /*recurse=*/false, [on](GroupSwitches& s) { s.unshard_in_backward = on; });
}

void set_gradient_divide_factor(nn::Module& module, double factor) {
  if (!(factor > 0) || !std::isfinite(factor)) {
    config_error("gradient divide factor of a {} is {}; use a number above 0", module.type_name(), factor);
  }
  switch_groups(module, /*recurse=*/false, [factor](GroupSwitches& s) { s.gradient_divide_factor = factor; });
}

void set_reduce_scatter_divide_factor(nn::Module& module, double factor) { set_gradient_divide_factor(module, factor); }

void set_force_sum_reduction_for_comms(nn::Module& module, bool on) {
  switch_groups(module, /*recurse=*/false, [on](GroupSwitches& s) { s.force_sum_reduction = on; });
}

void set_post_optim_event(nn::Module& root, device::Event event) {
  state_of(root).set_post_optim_event(std::move(event));
}

void set_custom_all_gather(nn::Module& module, std::shared_ptr<AllGather> comm) {
  for_each_group(module, /*recurse=*/false, [&](ParamGroup& group) {
    if (comm != nullptr && group.has_memory_from_process_group()) refuse_two_memories(module);
    group.set_custom_all_gather(std::move(comm));
  });
}

void set_custom_reduce_scatter(nn::Module& module, std::shared_ptr<ReduceScatter> comm) {
  for_each_group(module, /*recurse=*/false, [&](ParamGroup& group) {
    if (comm != nullptr && group.has_memory_from_process_group()) refuse_two_memories(module);
    group.set_custom_reduce_scatter(std::move(comm));
  });
}

void set_allocate_memory_from_process_group_for_comm(nn::Module& module, bool on) {
  for_each_group(module, /*recurse=*/false, [&](ParamGroup& group) {
    if (on && group.has_custom_comm()) refuse_two_memories(module);
    group.set_memory_from_process_group(on);
  });
}

void set_all_reduce_hook(nn::Module& module, AllReduceHook hook, device::Stream* stream) {
  const int replicas = state_of(module).options().axes.replicate.size();
  if (stream != nullptr && replicas > 1) {
    config_error(
        "set_all_reduce_hook of a {}: stream '{}' is given, but the mesh has {} replicas and the hook follows their "
        "all-reduce on its stream; give no stream",
        module.type_name(), stream->name(), replicas);
  }
  for_each_group(module, /*recurse=*/false,
                 [&](ParamGroup& group) { group.set_all_reduce_hook(std::move(hook), stream); });
}

void share_comm_ctx(const std::vector<nn::Module*>& roots) {
  const auto in_flight = std::make_shared<InFlight>();
  for (FsdpState* state : states_of(roots)) state->share(in_flight);
}

void register_fsdp_forward_method(nn::Module& module, std::string name, ForwardMethod method) {
  FsdpState* state = FsdpState::of(module);
  if (state == nullptr) {
    config_error("register_fsdp_forward_method('{}') of a {} that is not wrapped; call fully_shard() on it first", name,
                 module.type_name());
  }
  state->register_forward_method(module, std::move(name), std::move(method));
}

nn::Value call_method(nn::Module& module, std::string_view name, nn::Args args) {
  FsdpState* state = FsdpState::of(module);
  if (state == nullptr) {
    config_error(
        "call_method('{}') of a {} that is not wrapped; call its own method, or fully_shard() it and register the name "
        "with register_fsdp_forward_method()",
        name, module.type_name());
  }
  return state->call_method(module, name, std::move(args));
}

void unshard(nn::Module& module) {
  FsdpState& state = state_of(module);
  state.lazy_init();
  if (state.group() == nullptr) return;
  state.group()->unshard();
  state.group()->wait_for_unshard();
}

void pregather(nn::Module& root) { state_of(root).pregather(); }

void start_unshard(nn::Module& root) { state_of(root).start_unshard(); }
void wait_for_unshard(nn::Module& root) { state_of(root).wait_for_unshard(); }
void finish_backward(nn::Module& root) { state_of(root).finish_backward(); }

void reshard(nn::Module& module) {
  if (ParamGroup* group = state_of(module).group()) group->reshard();
}

}  // namespace loom::sharding
