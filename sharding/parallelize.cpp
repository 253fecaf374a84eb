#include "sharding/parallelize.h"

#include <algorithm>
#include <unordered_set>

#include "engine/core/error.h"
#include "sharding/axes_table.h"
#include "sharding/context/share_sequences.h"
#include "sharding/expert/share_experts.h"
#include "sharding/fsdp/model_tree.h"
#include "sharding/fully_shard.h"
#include "sharding/prefetch_order.h"
#include "sharding/selected_modules.h"
#include "sharding/wrapped_groups.h"

namespace loom::sharding {
namespace {

// Every parameter below the ignored modules, with its path.
std::vector<std::pair<std::string, Tensor>> ignored_parameters(nn::Module& model,
                                                               const std::vector<std::string>& modules) {
  std::vector<std::pair<std::string, Tensor>> found;
  for (const std::string& module : modules) {
    for (auto& [name, parameter] : model.find(module)->named_parameters()) {
      found.emplace_back(nn::join_path(module, name), parameter);
    }
  }
  return found;
}

// An ignored module that is trained: one line, naming its first trained parameter.
void warn_if_trained(nn::Module& model, const std::string& module, const WrittenAs& written_as,
                     std::vector<std::string>& warnings) {
  std::vector<std::string> trained;
  for (auto& [path, parameter] : ignored_parameters(model, {module})) {
    if (parameter.requires_grad()) trained.push_back(path);
  }
  if (trained.empty()) return;
  const std::string note = alias_note(module, written_as);
  const bool one = trained.size() == 1;
  warnings.push_back(fmt::format(
      "ignored_modules: '{}'{}{} trained, but ignored parameters are not reduced: {} values drift apart between ranks; "
      "freeze {}",
      trained.front(), one ? note : "",
      one ? " is" : fmt::format(" and {} more below '{}'{} are", trained.size() - 1, module, note),
      one ? "its" : "their", one ? "it" : "them"));
}

constexpr std::string_view kRoot = "(root)";

// "(root) owns a.weight, b.weight": what no wrapped module took, the first few by name.
std::string root_owns(const FsdpState& root) {
  constexpr std::size_t kNamed = 4;
  if (root.group() == nullptr) return fmt::format("{} owns no parameters\n", kRoot);
  const auto& params = root.group()->params();
  std::string text = fmt::format("{} owns ", kRoot);
  for (std::size_t i = 0; i < std::min(kNamed, params.size()); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", params[i]->path());
  }
  if (params.size() > kNamed) text += fmt::format(" and {} more", params.size() - kNamed);
  return text + "\n";
}

// Paths of all modules, in pre-order of registration of their groups.
std::vector<std::string> paths_of(const std::vector<WrappedGroup>& groups) {
  std::vector<std::string> paths;
  for (const WrappedGroup& group : groups) paths.insert(paths.end(), group.paths.begin(), group.paths.end());
  return paths;
}

// The k-th, the 2k-th, ... of the listed modules.
std::vector<std::string> every_kth(const Fsdp2Config& config, const std::vector<std::string>& listed) {
  const auto k = static_cast<std::size_t>(config.recompute_every);
  if (!listed.empty() && k > listed.size()) {
    config_error(
        "{}: recompute_every is {}, and recompute_modules selects {} module{}, so none is recomputed; use at "
        "most {}",
        config.value_mark("recompute_every").text(), k, listed.size(), listed.size() == 1 ? "" : "s", listed.size());
  }
  std::vector<std::string> chosen;
  for (std::size_t i = k; i <= listed.size(); i += k) chosen.push_back(listed[i - 1]);
  return chosen;
}

// The modules with a forward right below the one at `path`; of a container, its items.
void add_children(nn::Module& model, const std::string& path, std::vector<std::string>& children) {
  for (auto& [name, child] : model.find(path)->children()) {
    const std::string child_path = nn::join_path(path, name);
    if (child->has_forward()) {
      children.push_back(child_path);
    } else {
      add_children(model, child_path, children);
    }
  }
}

// The modules to recompute: the listed modules, or their children.
std::vector<std::string> recomputed_paths(nn::Module& model, const Fsdp2Config& config,
                                          const std::vector<std::string>& listed) {
  std::vector<std::string> chosen = every_kth(config, listed);
  if (!config.recompute_children) return chosen;
  std::vector<std::string> children;
  for (const std::string& path : chosen) {
    const std::size_t before = children.size();
    add_children(model, path, children);
    if (children.size() > before) continue;
    config_error(
        "{}: recompute_children is true, and '{}' (a {}) of recompute_modules has no module below it; remove the key, "
        "or list the modules whose children are to be recomputed",
        config.value_mark("recompute_children").text(), path, model.find(path)->type_name());
  }
  return children;
}

// The file's selection, then the program's additions.
std::vector<RecomputedModule> recomputed_of(nn::Module& model, const Fsdp2Config& config,
                                            const std::vector<std::string>& listed) {
  if (!listed.empty() && config.use_reentrant && config.recompute_keep != RecomputeKeep::kNone) {
    config_error(
        "{}: recompute_keep is {}, and use_reentrant is true, which keeps no results of operators; write "
        "use_reentrant: false",
        config.value_mark("recompute_keep").text(), word_of(config.recompute_keep));
  }
  std::vector<RecomputedModule> recomputed;
  for (const std::string& path : recomputed_paths(model, config, listed)) {
    recomputed.push_back({.path = path, .use_reentrant = config.use_reentrant, .keep = config.recompute_keep});
  }
  for (const RecomputedModule& choice : config.recompute_by_path) {
    if (is_elsewhere(model, choice.path)) continue;
    require(model.find(choice.path) != nullptr, "'{}' is to be recomputed, and {} has no such module", choice.path,
            model.type_name());
    recomputed.push_back(choice);
  }
  return recomputed;
}

SharedExperts shared_experts(nn::Module& model, const Fsdp2Config& config, const ModelTree& tree,
                             ResolvedFsdp2Config& resolved) {
  SharedExperts experts{listed_modules(model, config.moe_modules, tree, resolved.warnings, resolved.written_as),
                        config.expert_parallel_size,
                        config.reshard_local_experts,
                        {config.moe_token_dispatcher_type, config.moe_shared_expert_overlap}};
  if (experts.paths.empty() && experts.ranks > 1) {
    config_error(
        "{}: expert_parallel_size is {}, but no module is listed in moe_modules; list the modules of experts, "
        "such as model.layers.{{*}}.mlp.experts",
        config.value_mark("expert_parallel_size").text(), experts.ranks);
  }
  const std::string where = fmt::format("{}: moe_modules", config.value_mark("moe_modules").text());
  for (const std::string& path : experts.paths) check_shares_experts(model, path, experts.ranks, where);
  return experts;
}

}  // namespace

ResolvedFsdp2Config resolve_fsdp2(nn::Module& model, const Fsdp2Config& config, int world_size, GatherLayout layout) {
  ResolvedFsdp2Config resolved;
  resolved.layout = validate_against_world(config, world_size);
  const ModelTree tree(model);
  resolved.warnings = resolved.layout.warnings;
  resolved.groups = groups_of(model, config.sub_modules_to_wrap, tree, resolved.warnings, resolved.written_as);
  if (config.align_fsdp_param_groups) {
    resolved.groups = with_norms_apart(model, std::move(resolved.groups), resolved.warnings);
  }
  resolved.hook_modules = listed_modules(model, config.hook_modules, tree, resolved.warnings, resolved.written_as);
  resolved.sequences = {{config.ring_attention_size, config.ulysses_parallel_size}, config.ring_rotate_method};
  resolved.matrices = shared_matrices(model, config);
  resolved.experts = shared_experts(model, config, tree, resolved);
  check_shares_sequences(model, config);
  resolved.groups = with_experts(model, std::move(resolved.groups), resolved.experts.paths);
  set_hook_modules(resolved.groups, resolved.hook_modules);
  resolved.wrapped = paths_of(resolved.groups);
  resolved.recomputed = recomputed_of(
      model, config, listed_modules(model, config.recompute_modules, tree, resolved.warnings, resolved.written_as));
  for (std::string& path :
       listed_modules(model, config.chunk_mbs_modules, tree, resolved.warnings, resolved.written_as)) {
    resolved.chunked.push_back({std::move(path), config.chunk_mbs, config.chunk_arg_indexs, config.chunk_kwarg_names});
  }
  resolved.offloaded =
      modules_in_order(model, config.activation_offload_modules, tree, resolved.warnings, resolved.written_as);
  resolved.pin_memory = config.pin_memory;
  resolved.swapped = config.swap_by_path;
  check_ties(model, fmt::format("{}: sub_modules_to_wrap", config.value_mark("sub_modules_to_wrap").text()),
             resolved.groups);
  resolved.options.policy = {config.param_dtype, config.reduce_dtype, config.output_dtype, config.cast_forward_inputs};
  resolved.options.reshard_after_forward = resolved.layout.reshard_after_forward;
  const ModuleExpansion ignored = expand(config.ignored_modules, tree);
  resolved.warnings.insert(resolved.warnings.end(), ignored.warnings.begin(), ignored.warnings.end());
  resolved.ignored = ignored.paths;
  std::erase_if(resolved.ignored, [&](const std::string& path) { return is_elsewhere(model, path); });
  resolved.written_as.insert(ignored.written_as.begin(), ignored.written_as.end());
  for (const std::string& module : resolved.ignored)
    warn_if_trained(model, module, ignored.written_as, resolved.warnings);
  resolved.options.layout = layout;
  if (config.offload_to_cpu) resolved.options.cpu_offload = CpuOffloadPolicy{config.pin_memory};
  resolved.num_to_forward_prefetch = config.num_to_forward_prefetch;
  resolved.num_to_backward_prefetch = config.num_to_backward_prefetch;
  resolved.prefetch_order = config.prefetch_order;
  resolved.entries = effective_config(config, resolved);
  return resolved;
}

std::vector<std::string> paths_of(nn::Module& model, std::span<const ModulePattern> patterns,
                                  std::vector<std::string>& warnings) {
  WrittenAs written_as;
  return listed_modules(model, patterns, ModelTree(model), warnings, written_as);
}

std::vector<std::string> paths_in_order_of(nn::Module& model, std::span<const ModulePattern> patterns,
                                           std::vector<std::string>& warnings) {
  WrittenAs written_as;
  return modules_in_order(model, patterns, ModelTree(model), warnings, written_as);
}

FullyShardOptions options_for(nn::Module& model, const ResolvedFsdp2Config& resolved, comm::World& world) {
  if (world.size() > 1) check_same_config(resolved.entries, *world.everyone());
  FullyShardOptions options = resolved.options;
  for (auto& [path, parameter] : ignored_parameters(model, resolved.ignored)) {
    options.ignored_params.insert(parameter.id());
  }
  options.axes = FsdpAxes::over(world, resolved.layout.shard, resolved.layout.tensor);
  options.context = shared_context(world, resolved.sequences, resolved.layout.tensor);
  if (!resolved.experts.paths.empty()) {
    options.expert_axes = expert_axes(world, resolved.experts.ranks, resolved.experts.shards);
  }
  return options;
}

void shard_modules(nn::Module& model, const std::vector<std::string>& paths, const FullyShardOptions& options) {
  std::vector<WrappedGroup> groups;
  for (const std::string& path : paths) groups.push_back({.paths = {path}});
  check_ties(model, model.type_name(), groups);
  wrap_groups(model, groups, options);
  fully_shard(model, options);
}

void set_prefetch_lists(nn::Module& model, const std::vector<std::string>& paths, int forward, int backward) {
  std::vector<WrappedGroup> groups;
  for (const std::string& path : paths) groups.push_back({.paths = {path}});
  set_prefetch_units(model, prefetch_units(groups, PrefetchOrder::kRegistration), forward, backward);
}

void recompute_modules(nn::Module& model, const std::vector<RecomputedModule>& choices,
                       const RecomputeStep& recompute) {
  if (!choices.empty() && !recompute) {
    config_error(
        "recompute_modules selects '{}'{} of {}, but parallelize() was given no recompute step; hand in one that calls "
        "recompute::checkpoint(), or use models::fully_shard()",
        choices.front().path, choices.size() == 1 ? "" : fmt::format(" and {} more", choices.size() - 1),
        model.type_name());
  }
  for (const RecomputedModule& choice : choices) recompute(model, choice);
}

void offload_activations(nn::Module& model, const std::vector<std::string>& paths, bool pin_memory,
                         const OffloadStep& offload) {
  if (offload) return offload(model, paths, pin_memory);
  if (paths.empty()) return;
  config_error(
      "activation_offload_modules selects '{}'{} of {}, but parallelize() was given no offload step; hand in one that "
      "calls offload::swap_activations(), or use models::fully_shard()",
      paths.front(), paths.size() == 1 ? "" : fmt::format(" and {} more", paths.size() - 1), model.type_name());
}

void parallelize(nn::Module& model, const ResolvedFsdp2Config& resolved, const FullyShardOptions& options,
                 const RecomputeStep& recompute, const OffloadStep& offload) {
  if (resolved.matrices.ranks > 1) {
    share_matrices(model, resolved.matrices, resolved.experts.paths, *options.axes.parts);
  }
  recompute_modules(model, resolved.recomputed, recompute);
  offload_activations(model, resolved.offloaded, resolved.pin_memory, offload);
  for (const nn::ChunkMbsOptions& module : resolved.chunked) nn::chunk_mbs(*model.find(module.path), module);
  if (options.expert_axes)
    share_experts(model, resolved.experts.paths, *options.expert_axes->parts, resolved.experts.sharing);
  if (options.context) share_sequences(model, options.context);
  wrap_groups(model, resolved.groups, options);
  FullyShardOptions root = options;
  root.reshard_after_forward = resolved.layout.root_reshard_after_forward;
  fully_shard(model, root);
  set_prefetch_units(model, prefetch_units(resolved.groups, resolved.prefetch_order), resolved.num_to_forward_prefetch,
                     resolved.num_to_backward_prefetch);
}

void parallelize(nn::Module& model, const ResolvedFsdp2Config& resolved, comm::World& world,
                 const RecomputeStep& recompute, const OffloadStep& offload) {
  parallelize(model, resolved, options_for(model, resolved, world), recompute, offload);
}

namespace {

// One line of the table; `path_width` is the width of its first column.
std::string describe_group(const FsdpState& state, const std::string& path, std::size_t path_width,
                           const WrittenAs& written_as) {
  const int shard_size = state.options().axes.shard.size();
  std::int64_t elems = 0;
  std::int64_t gathered_bytes = 0;
  std::int64_t needed_bytes = 0;
  std::string reshard = "true";
  if (const ParamGroup* group = state.group()) {
    reshard = group->switches().reshard_after_forward.text();
    for (const auto& param : group->params()) {
      elems += param->shape().numel();
      gathered_bytes += shard_size * param->gather_input_bytes();
      needed_bytes += param->unsharded().nbytes();
    }
  }
  const double waste = gathered_bytes == 0 ? 0.0
                                           : 100.0 * static_cast<double>(gathered_bytes - needed_bytes) /
                                                 static_cast<double>(gathered_bytes);
  const auto found = written_as.find(path);
  return fmt::format("{:<{}}{:>12}{:>12.1f}{:>9.2f}%{:>9}{:>10}{:>10}{}\n",
                     path.empty() ? kRoot : std::string_view(path), path_width, elems,
                     static_cast<double>(gathered_bytes) / 1024, waste, reshard,
                     state.forward_prefetch().empty() ? "implicit" : std::to_string(state.forward_prefetch().size()),
                     state.backward_prefetch().empty() ? "implicit" : std::to_string(state.backward_prefetch().size()),
                     found == written_as.end() ? "" : "  as " + found->second);
}

std::string mode_lines(const FullyShardOptions& options, const TensorShares* shares) {
  std::string text = describe_mode(options.axes.replicate.size(), options.axes.shard.size()) + "\n";
  text += axes_table(options, shares);
  if (const auto& offload = options.cpu_offload) {
    text += fmt::format("shards, gradients and optimizer state in {} host memory\n",
                        offload->pin_memory ? "pinned" : "pageable");
  }
  return text;
}

}  // namespace

std::string describe_mode(int replicate, int shard) {
  return fmt::format("{} x {}: shards over {}, replicates over {}", replicate, shard, shard, replicate);
}

std::string describe_groups(nn::Module& model, const std::map<std::string, std::string>& written_as) {
  constexpr std::size_t kPathWidth = 28;
  std::vector<std::pair<std::string, const FsdpState*>> groups;
  std::size_t width = kPathWidth;
  for (auto& [path, module] : model.named_modules()) {
    const FsdpState* state = FsdpState::of(*module);
    if (state == nullptr) continue;
    const auto together = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.second == state; });
    if (together != groups.end()) {
      together->first += ", " + path;
    } else {
      groups.emplace_back(path, state);
    }
  }
  for (const auto& [path, state] : groups) {
    width = std::max(width, path.size() + 2);
  }
  if (groups.empty()) return "";
  std::string text = mode_lines(groups.front().second->options(), model.attachment<TensorShares>().get());
  text += fmt::format("{:<{}}{:>12}{:>12}{:>10}{:>9}{:>10}{:>10}\n", "group", width, "parameters", "gather KiB",
                      "padding", "reshard", "fwd-pref", "bwd-pref");
  for (const auto& [path, state] : groups) text += describe_group(*state, path, width, written_as);
  if (const FsdpState* root = FsdpState::of(model)) text += root_owns(*root);
  return text;
}

}  // namespace loom::sharding
