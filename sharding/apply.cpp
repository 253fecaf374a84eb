#include "sharding/apply.h"

#include <algorithm>
#include <functional>
#include <unordered_set>

#include "engine/core/error.h"
#include "sharding/fully_shard.h"
#include "sharding/model_tree.h"

namespace loom::sharding {
namespace {

void for_each_post_order(nn::Module& module, std::unordered_set<nn::Module*>& seen,
                         const std::function<void(nn::Module&)>& visit) {
  if (!seen.insert(&module).second) return;
  for (auto& [name, child] : module.children()) for_each_post_order(*child, seen, visit);
  visit(module);
}

using PrefetchSetter = void (*)(nn::Module&, const std::vector<nn::Module*>&);

// Each module gets the next `count` of the list as its targets.
void set_prefetch(const std::vector<nn::Module*>& order, int count, PrefetchSetter set) {
  for (std::size_t i = 0; count > 0 && i + 1 < order.size(); ++i) {
    const std::size_t end = std::min(order.size(), i + 1 + static_cast<std::size_t>(count));
    set(*order[i], {order.begin() + static_cast<std::ptrdiff_t>(i) + 1, order.begin() + static_cast<std::ptrdiff_t>(end)});
  }
}

void check_containers(nn::Module& model, const Fsdp2Config& config, const ModelTree& tree) {
  for (const ModulePattern& pattern : config.sub_modules_to_wrap) {
    for (const std::string& path : expand(pattern, tree).paths) {
      if (!model.find(path)->has_forward()) {
        config_error("{}: {}: '{}' is a {} and has no forward of its own; wrap its items: '{}.{{*}}'", pattern.mark().text(),
                     pattern.key(), path, model.find(path)->type_name(), path);
      }
    }
  }
}

}  // namespace

Fsdp2Plan plan_fsdp2(nn::Module& model, const Fsdp2Config& config, int world_size, GatherLayout layout) {
  Fsdp2Plan plan;
  plan.layout = validate_against_world(config, world_size);
  reject_not_built(config, plan.layout);
  const ModelTree tree(model);
  const ModuleExpansion expansion = expand(config.sub_modules_to_wrap, tree);
  check_containers(model, config, tree);
  plan.warnings = plan.layout.warnings;
  plan.warnings.insert(plan.warnings.end(), expansion.warnings.begin(), expansion.warnings.end());
  const std::unordered_set<std::string> listed(expansion.paths.begin(), expansion.paths.end());
  for (auto& [path, module] : model.named_modules()) {
    if (listed.contains(path)) plan.wrapped.push_back(path);
  }
  plan.options.policy = {config.param_dtype, config.reduce_dtype, config.output_dtype, config.cast_forward_inputs};
  plan.options.reshard_after_forward = plan.layout.reshard_after_forward;
  plan.options.layout = layout;
  if (config.offload_to_cpu) plan.options.cpu_offload = CpuOffloadPolicy{config.pin_memory};
  plan.num_to_forward_prefetch = config.num_to_forward_prefetch;
  plan.num_to_backward_prefetch = config.num_to_backward_prefetch;
  return plan;
}

void apply_fsdp2(nn::Module& model, const Fsdp2Plan& plan, comm::World& world) {
  FullyShardOptions options = plan.options;
  options.mesh = std::make_shared<comm::DeviceMesh>(comm::DeviceMesh::create(world, plan.layout.shard));
  std::vector<nn::Module*> order;
  for (const std::string& path : plan.wrapped) order.push_back(model.find(path));
  const std::unordered_set<nn::Module*> wrapped(order.begin(), order.end());
  std::unordered_set<nn::Module*> seen;
  for_each_post_order(model, seen, [&](nn::Module& module) {
    if (wrapped.contains(&module)) fully_shard(module, options);
  });
  fully_shard(model, options);
  set_prefetch(order, plan.num_to_forward_prefetch, set_modules_to_forward_prefetch);
  std::reverse(order.begin(), order.end());
  set_prefetch(order, plan.num_to_backward_prefetch, set_modules_to_backward_prefetch);
}

std::string describe_groups(nn::Module& model) {
  std::string text;
  for (auto& [path, module] : model.named_modules()) {
    const State* state = State::of(*module);
    if (state == nullptr) continue;
    const comm::DeviceMesh& mesh = *state->options().mesh;
    if (text.empty()) {
      text = fmt::format("{} x {}: shards over {}, replicates over {}\n", mesh.replicate_size(), mesh.shard_size(),
                         mesh.shard_size(), mesh.replicate_size());
      if (const auto& offload = state->options().cpu_offload) {
        text += fmt::format("shards, gradients and optimizer state in {} host memory\n", offload->pin_memory ? "pinned" : "pageable");
      }
      text += fmt::format("{:<28}{:>12}{:>12}{:>10}{:>9}{:>10}{:>10}\n", "group", "parameters", "gather KiB", "padding",
                          "reshard", "fwd-pref", "bwd-pref");
    }
    std::int64_t elems = 0;
    std::int64_t gathered_bytes = 0;
    std::int64_t needed_bytes = 0;
    bool reshard = true;
    if (const ParamGroup* group = state->group()) {
      reshard = group->reshard_after_forward;
      for (const auto& param : group->params()) {
        elems += param->shape().numel();
        gathered_bytes += mesh.shard_size() * param->gather_input_bytes();
        needed_bytes += param->unsharded().nbytes();
      }
    }
    const double waste = gathered_bytes == 0 ? 0.0 : 100.0 * static_cast<double>(gathered_bytes - needed_bytes) / static_cast<double>(gathered_bytes);
    text += fmt::format("{:<28}{:>12}{:>12.1f}{:>9.2f}%{:>9}{:>10}{:>10}\n", path.empty() ? "(root)" : path, elems,
                        static_cast<double>(gathered_bytes) / 1024, waste, reshard ? "true" : "false",
                        state->forward_prefetch().empty() ? "implicit" : std::to_string(state->forward_prefetch().size()),
                        state->backward_prefetch().empty() ? "implicit" : std::to_string(state->backward_prefetch().size()));
  }
  return text;
}

}  // namespace loom::sharding
