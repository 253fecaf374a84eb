#include "sharding/wrapped_groups.h"

#include <algorithm>
#include <fmt/format.h>
#include <unordered_map>
#include <unordered_set>

#include "engine/core/error.h"
#include "sharding/expert/share_experts.h"
#include "sharding/fsdp/model_tree.h"
#include "sharding/fully_shard.h"
#include "sharding/selected_modules.h"

namespace loom::sharding {
namespace {

using EntryOf = std::map<std::string, const WrapEntry*>;  // by path

void add(const std::string& path, const WrapEntry& entry, EntryOf& entry_of) {
  const auto [found, is_new] = entry_of.emplace(path, &entry);
  if (is_new || found->second == &entry) return;
  if (found->second->is_one_group || entry.is_one_group) {
    config_error(
        "{}: sub_modules_to_wrap: '{}' is in the entry of {} too, and one of the two is a group of several modules; "
        "leave it in one of them",
        entry.mark().text(), path, found->second->mark().text());
  }
  found->second = &entry;
}

// A module below another one of its group is wrapped with that one.
void add_module(const std::string& path, WrappedGroup& group) {
  const auto holds = [&](const std::string& above) { return is_below(path, above); };
  if (std::ranges::none_of(group.paths, holds)) group.paths.push_back(path);
}

// The ranks with data of their own: all of the axes of experts, but for those that share matrices.
double data_size(const FullyShardOptions& options) {
  const FsdpAxes& axes = *options.expert_axes;
  const double all = static_cast<double>(axes.shard.size()) * axes.replicate.size() * axes.parts->size();
  return options.axes.parts ? all / options.axes.parts->size() : all;
}

// Modules below the modules of a group are wrapped before the group.
class BottomUp {
 public:
  BottomUp(nn::Module& model, std::span<const WrappedGroup> groups, const FullyShardOptions& options)
      : model_(model), options_(options) {
    for (const WrappedGroup& group : groups) {
      for (const std::string& path : group.paths) group_of_.emplace(model.find(path), &group);
    }
  }

  void visit(nn::Module& module) {
    if (!seen_.insert(&module).second) return;
    for (auto& [name, child] : module.children()) visit(*child);
    const auto group = group_of_.find(&module);
    if (group != group_of_.end() && &module != &model_) wrap(*group->second);
  }

 private:
  void wrap(const WrappedGroup& group) {
    if (!wrapped_.insert(&group).second) return;
    std::vector<nn::Module*> modules;
    for (const std::string& path : group.paths) modules.push_back(model_.find(path));
    for (nn::Module* module : modules) visit(*module);
    FullyShardOptions options = group.has_shared_experts ? expert_options(options_) : options_;
    if (group.reshard_after_forward) options.reshard_after_forward = group.reshard_after_forward;
    if (!group.hook_module.empty()) options.hook_module = model_.find(group.hook_module);
    fully_shard(modules, options);
    if (group.has_shared_experts) set_gradient_divide_factor(*modules.front(), data_size(options_));
  }

  nn::Module& model_;
  const FullyShardOptions& options_;
  std::unordered_map<const nn::Module*, const WrappedGroup*> group_of_;
  std::unordered_set<const nn::Module*> seen_;
  std::unordered_set<const WrappedGroup*> wrapped_;
};

using GroupOf = std::unordered_map<std::string, const WrappedGroup*>;  // by path of a module

// The group that will own the parameters at `path`: the group of the nearest module above; null is the root's.
const WrappedGroup* owner_of(std::string path, const GroupOf& group_of) {
  while (!path.empty()) {
    if (const auto found = group_of.find(path); found != group_of.end()) return found->second;
    path = parent_of(path);
  }
  return nullptr;
}

// In pre-order of registration of their first modules.
void sort_by_place(nn::Module& model, std::vector<WrappedGroup>& groups) {
  std::unordered_map<std::string, std::size_t> place;
  for (auto& [path, module] : model.named_modules()) place.emplace(path, place.size());
  std::ranges::sort(groups, {}, [&](const WrappedGroup& group) { return place.at(group.paths.front()); });
}

// The number behind those of the list's entries.
std::size_t entries_of(const std::vector<WrappedGroup>& groups) {
  return groups.empty() ? 0 : std::ranges::max(groups, {}, &WrappedGroup::entry).entry + 1;
}

// Its own parameters are vectors alone, or those of a router.
bool is_norm_or_router(nn::Module& module) {
  const auto& own = module.own_parameters();
  if (own.empty()) return false;
  if (module.type_name().ends_with("Router")) return true;
  return std::ranges::all_of(own, [](const auto& slot) { return slot->value.shape().ndim() == 1; });
}

std::string in_words(const WrappedGroup* group) {
  return group == nullptr ? "group of the root" : fmt::format("group '{}'", fmt::join(group->paths, ", "));
}

}  // namespace

std::string text_of(const WrappedGroup& group) {
  const std::string paths = fmt::format("{}", fmt::join(group.paths, ", "));
  if (!group.reshard_after_forward) return paths;
  return fmt::format("{} (reshard_after_forward: {})", paths, group.reshard_after_forward->text());
}

std::vector<WrappedGroup> groups_of(nn::Module& model, std::span<const WrapEntry> entries, const ModelTree& tree,
                                    std::vector<std::string>& warnings,
                                    std::map<std::string, std::string>& written_as) {
  EntryOf entry_of;
  for (const WrapEntry& entry : entries) {
    for (const std::string& path : modules_in_order(model, entry.modules, tree, warnings, written_as)) {
      add(path, entry, entry_of);
    }
  }
  std::vector<WrappedGroup> groups;
  std::map<const WrapEntry*, std::size_t> place_of;  // of entries that are one group
  for (auto& [path, module] : model.named_modules()) {
    const auto found = entry_of.find(path);
    if (found == entry_of.end()) continue;
    const WrapEntry& entry = *found->second;
    const auto [place, is_new] = place_of.emplace(&entry, groups.size());
    if (is_new || !entry.is_one_group) {
      groups.push_back({.paths = {path},
                        .reshard_after_forward = entry.reshard_after_forward,
                        .entry = static_cast<std::size_t>(&entry - entries.data())});
    } else {
      add_module(path, groups[place->second]);
    }
  }
  return groups;
}

std::vector<WrappedGroup> with_norms_apart(nn::Module& model, std::vector<WrappedGroup> groups,
                                           std::vector<std::string>& warnings) {
  std::unordered_set<std::string> wrapped;
  for (const WrappedGroup& group : groups) wrapped.insert(group.paths.begin(), group.paths.end());
  WrappedGroup apart{.paths = {}, .reshard_after_forward = ReshardAfterForward::never(), .entry = entries_of(groups)};
  for (auto& [path, module] : model.named_modules()) {
    const auto holds = [&, &path = path](const std::string& above) { return is_below(path, above); };
    if (is_norm_or_router(*module) && !wrapped.contains(path) && std::ranges::any_of(wrapped, holds)) {
      apart.paths.push_back(path);
    }
  }
  if (apart.paths.empty()) {
    warnings.push_back("align_fsdp_param_groups: no norm or router is below a module of sub_modules_to_wrap");
    return groups;
  }
  groups.push_back(std::move(apart));
  sort_by_place(model, groups);
  return groups;
}

std::vector<WrappedGroup> with_experts(nn::Module& model, std::vector<WrappedGroup> groups,
                                       const std::vector<std::string>& expert_paths) {
  if (expert_paths.empty()) return groups;
  const std::size_t entries = entries_of(groups);
  for (const std::string& path : expert_paths) {
    const auto holds = [&](const WrappedGroup& group) {
      return std::ranges::find(group.paths, path) != group.paths.end();
    };
    const auto group = std::ranges::find_if(groups, holds);
    if (group == groups.end()) {
      groups.push_back({.paths = {path}, .entry = entries, .has_shared_experts = true});
    } else if (group->paths.size() > 1) {
      config_error("moe_modules: '{}' is in {}, and experts are a group of their own; take it out of that list", path,
                   in_words(&*group));
    } else {
      group->has_shared_experts = true;
    }
  }
  sort_by_place(model, groups);
  return groups;
}

void set_hook_modules(std::span<WrappedGroup> groups, std::span<const std::string> hook_modules) {
  for (WrappedGroup& group : groups) {
    for (const std::string& hook : hook_modules) {
      const bool holds_all = std::ranges::all_of(
          group.paths, [&](const std::string& path) { return path == hook || is_below(path, hook); });
      if (holds_all && hook.size() > group.hook_module.size()) group.hook_module = hook;
    }
    if (group.paths.size() == 1 && group.hook_module == group.paths.front()) group.hook_module.clear();
  }
}

void check_ties(nn::Module& model, std::string_view where, std::span<const WrappedGroup> groups) {
  GroupOf group_of;
  for (const WrappedGroup& group : groups) {
    for (const std::string& path : group.paths) group_of.emplace(path, &group);
  }
  std::unordered_map<const void*, std::string> first_path;
  for (auto& [path, slot] : model.named_slots()) {
    const auto [first, is_new] = first_path.emplace(slot->value.id(), path);
    const WrappedGroup* group = owner_of(path, group_of);
    const WrappedGroup* first_group = owner_of(first->second, group_of);
    if (is_new || group == first_group) continue;
    config_error(
        "{}: '{}' ({}) and '{}' ({}) are one parameter; a tie must stay inside one group: wrap neither module, wrap "
        "both as one group, or untie them (--untie-embeddings-and-output-weights, or tie_word_embeddings: false)",
        where, first->second, in_words(first_group), path, in_words(group));
  }
}

void wrap_groups(nn::Module& model, std::span<const WrappedGroup> groups, const FullyShardOptions& options) {
  BottomUp(model, groups, options).visit(model);
}

}  // namespace loom::sharding
