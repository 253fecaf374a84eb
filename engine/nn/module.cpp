#include "engine/nn/module.h"

#include <algorithm>
#include <memory_resource>
#include <unordered_set>

#include "engine/core/error.h"
#include "engine/core/spelling.h"
#include "engine/nn/absent.h"
#include "engine/nn/call_stack.h"

namespace loom::nn {
namespace {

// Appends a name to a path, and returns how long the path was.
std::size_t append_name(std::string& path, std::string_view name) {
  const std::size_t before = path.size();
  if (name.empty() || name.starts_with('(')) return before;
  if (before > 0) path += '.';
  path += name;
  return before;
}

// What a walk has seen. Large models are walked often: memory is taken by the hundred, and given back at once.
class Seen {
 public:
  bool insert(const void* object) { return objects_.insert(object).second; }

 private:
  std::pmr::monotonic_buffer_resource memory_;
  std::pmr::unordered_set<const void*> objects_{&memory_};
};

// Calls visit(path, module) once for each module, parents first; M is Module or const Module. `path` is a string that
// the next call changes.
template <class M, class Visit>
void walk(M& module, std::string& path, Seen& seen, const Visit& visit) {
  if (!seen.insert(&module)) return;
  visit(path, module);
  for (const auto& [name, child] : module.children()) {
    const std::size_t before = append_name(path, name);
    walk<M>(*child, path, seen, visit);
    path.resize(before);
  }
}

template <class M, class Visit>
void walk(M& root, const Visit& visit) {
  std::string path;
  Seen seen;
  walk(root, path, seen, visit);
}

std::string_view type_name_at(const std::vector<std::pair<std::string, std::shared_ptr<Module>>>& children,
                              const std::string& name) {
  const auto found = std::ranges::find(children, name, &std::pair<std::string, std::shared_ptr<Module>>::first);
  return found == children.end() ? std::string_view{} : found->second->type_name();
}

void check_parameter_name(const std::vector<std::unique_ptr<ParamSlot>>& slots, const std::string& name) {
  check_model(std::ranges::none_of(slots, [&](const auto& slot) { return slot->name == name; }),
              "a module registers two parameters as '{}'; give each a name of its own", name);
}

[[noreturn]] void raise_no_module(const Module& root, std::string_view path) {
  std::vector<std::string> paths;
  for (const auto& [known, module] : root.named_modules()) paths.push_back(known);
  const auto nearest = nearest_spelling(path, paths);
  config_error("replace_child: {} has no module '{}'{}", root.type_name(), path,
               nearest ? fmt::format("; did you mean '{}'?", *nearest) : "");
}

// The slots of `replacement` that take over a parameter of `replaced` which slots outside of it hold too.
std::vector<std::pair<ParamSlot*, const ParamSlot*>> find_ties(const Module& root, const Module& replaced,
                                                               Module& replacement, std::string_view path) {
  if (is_absent(replacement)) return {};  // another rank has it
  std::unordered_set<const ParamSlot*> inside;
  for (const auto& [name, slot] : replaced.named_slots()) inside.insert(slot);
  std::unordered_map<const void*, std::string> outside;
  for (const auto& [name, slot] : root.named_slots()) {
    if (!inside.contains(slot)) outside.emplace(slot->value.id(), name);
  }
  const auto slots = replacement.named_slots();
  std::vector<std::pair<ParamSlot*, const ParamSlot*>> ties;
  for (const auto& [name, slot] : replaced.named_slots()) {
    const auto tied = outside.find(slot->value.id());
    const auto holds_it = [slot = slot](const auto& entry) { return entry.second->value.is_same(slot->value); };
    if (tied == outside.end() || std::ranges::any_of(slots, holds_it)) continue;
    const auto same = std::ranges::find(slots, name, &std::pair<std::string, ParamSlot*>::first);
    if (same == slots.end() || same->second->shard != slot->shard ||
        same->second->value.dtype() != slot->value.dtype()) {
      config_error(
          "replace_child: '{}' is tied to '{}', and the {} that takes the place of '{}' has no parameter '{}' {} to "
          "hold it; keep the replaced module in it, or untie the two first",
          join_path(path, name), tied->second, replacement.type_name(), path, name,
          to_string(slot->shard.global_shape));
    }
    ties.emplace_back(same->second, slot);
  }
  return ties;
}

}  // namespace

void raise_replaced_child(const Module& parent, std::string_view name, const Module& child) {
  config_error(
      "'{}' of a {} is a {} now, and the code of its parent uses members of the class it had; replace it by a class "
      "derived from that one",
      name, parent.type_name(), child.type_name());
}

std::string join_path(std::string_view prefix, std::string_view name) {
  std::string path;
  path.reserve(prefix.size() + 1 + name.size());
  path = prefix;
  append_name(path, name);
  return path;
}

Value Module::call(Args args) {
  const RunningCall running(*this);
  return call_layer(call_layers_.size() - 1, std::move(args));
}

Value Module::call_layer(std::size_t index, Args args) {
  const CallLayer& layer = call_layers_[index];
  for (const PreHook& hook : layer.pre_hooks) hook(*this, args);
  Value result;
  if (index == 0) {
    check_callable(*this);
    result = forward(args);
    args = {};  // what forward needed for backward is on the tape; the rest is free now
  } else {
    result =
        layer.wrapper([this, index](Args inner) { return call_layer(index - 1, std::move(inner)); }, std::move(args));
  }
  for (const PostHook& hook : layer.post_hooks) result = hook(*this, std::move(result));
  return result;
}

namespace {

// In the children that add nothing to paths; not a placeholder while another one has the module itself.
const Module* find_inside(const Module& module, std::string_view path) {
  const Module* placeholder = nullptr;
  for (const auto& [name, child] : module.children()) {
    if (!name.starts_with('(')) continue;
    const Module* found = child->find(path);
    if (found != nullptr && !is_absent(*found)) return found;
    if (found != nullptr) placeholder = found;
  }
  return placeholder;
}

}  // namespace

const Module* Module::find(std::string_view path) const {
  const Module* module = this;
  while (!path.empty()) {
    const std::size_t dot = path.find('.');
    const std::string_view name = path.substr(0, dot);
    const Module* next = nullptr;
    for (const auto& [child_name, child] : module->children_) {
      if (child_name == name) next = child.get();
    }
    if (next == nullptr) return find_inside(*module, path);
    module = next;
    path = dot == std::string_view::npos ? std::string_view{} : path.substr(dot + 1);
  }
  return module;
}

Module* Module::find(std::string_view path) { return const_cast<Module*>(std::as_const(*this).find(path)); }

void Module::train(bool on) {
  walk(*this, [&](const std::string&, Module& module) { module.training_ = on; });
}

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
  std::vector<std::pair<std::string, Module*>> found;
  walk(*this, [&](const std::string& path, Module& module) { found.emplace_back(path, &module); });
  return found;
}

std::vector<std::pair<std::string, const Module*>> Module::named_modules() const {
  std::vector<std::pair<std::string, const Module*>> found;
  walk(*this, [&](const std::string& path, const Module& module) { found.emplace_back(path, &module); });
  return found;
}

std::vector<std::pair<std::string, ParamSlot*>> Module::named_slots() {
  std::vector<std::pair<std::string, ParamSlot*>> found;
  walk(*this, [&](const std::string& path, Module& module) {
    for (const auto& slot : module.parameters_) found.emplace_back(join_path(path, slot->name), slot.get());
  });
  return found;
}

std::vector<std::pair<std::string, const ParamSlot*>> Module::named_slots() const {
  std::vector<std::pair<std::string, const ParamSlot*>> found;
  walk(*this, [&](const std::string& path, const Module& module) {
    for (const auto& slot : module.parameters_) found.emplace_back(join_path(path, slot->name), slot.get());
  });
  return found;
}

std::vector<std::pair<std::string, Tensor>> Module::named_parameters() const {
  std::vector<std::pair<std::string, Tensor>> found;
  Seen seen;
  walk(*this, [&](const std::string& path, const Module& module) {
    for (const auto& slot : module.parameters_) {
      if (seen.insert(slot->value.id())) found.emplace_back(join_path(path, slot->name), slot->value);
    }
  });
  return found;
}

std::vector<Tensor> Module::parameters() const {
  std::vector<Tensor> found;
  Seen seen;
  walk(*this, [&](const std::string&, const Module& module) {
    for (const auto& slot : module.parameters_) {
      if (seen.insert(slot->value.id())) found.push_back(slot->value);
    }
  });
  return found;
}

std::int64_t Module::parameter_count() const {
  std::int64_t count = 0;
  Seen seen;
  walk(*this, [&](const std::string&, const Module& module) {
    for (const auto& slot : module.parameters_) {
      if (seen.insert(slot->value.id())) count += slot->shard.global_shape.numel();
    }
  });
  return count;
}

std::shared_ptr<Module> Module::replace_child(std::string_view path, std::shared_ptr<Module> replacement) {
  require(replacement != nullptr, "replace_child of '{}' by nothing", path);
  const Module* found = find(path);
  if (found == nullptr || found == this) raise_no_module(*this, path);
  for (const auto& [below, module] : found->named_modules()) {
    const bool cut =
        std::ranges::any_of(module->parameters_, [](const auto& slot) { return slot->holds != SlotHolds::kOwn; });
    if (!cut && !module->is_wrapped()) continue;
    config_error(
        "replace_child: '{}' ({}) is sharded, recomputed or has hooks already; replace it before fully_shard(), "
        "checkpoint() and register_*_hook()",
        join_path(path, below), module->type_name());
  }
  std::vector<std::shared_ptr<Module>*> places;
  for (const auto& [parent_path, parent] : named_modules()) {
    for (std::size_t i = 0; i < parent->children_.size(); ++i) {
      auto& [name, child] = parent->children_[i];
      if (child.get() != found) continue;
      if (parent->held_by_reference_.contains(i)) {
        config_error(
            "replace_child: the {} at '{}' holds its child '{}' by reference and would go on using the old one; "
            "declare that member as nn::Child<{}>",
            parent->type_name(), parent_path, name, child->type_name());
      }
      places.push_back(&child);
    }
  }
  for (const auto& [slot, tied] : find_ties(*this, *found, *replacement, path)) {
    slot->value = tied->value;
    slot->shard = tied->shard;
  }
  std::shared_ptr<Module> replaced = *places.front();
  for (std::shared_ptr<Module>* place : places) *place = replacement;
  return replaced;
}

bool Module::is_wrapped() const {
  return std::ranges::any_of(call_layers_, [](const CallLayer& layer) {
    return layer.wrapper || !layer.pre_hooks.empty() || !layer.post_hooks.empty();
  });
}

void Module::register_pre_hook(PreHook hook, bool prepend) {
  std::vector<PreHook>& hooks = call_layers_.back().pre_hooks;
  hooks.insert(prepend ? hooks.begin() : hooks.end(), std::move(hook));
}

void Module::register_post_hook(PostHook hook) { call_layers_.back().post_hooks.push_back(std::move(hook)); }

void Module::wrap_call(CallWrapper wrapper) { call_layers_.push_back({{}, {}, std::move(wrapper)}); }

ParamSlot& Module::register_parameter(std::string name, const Shape& shape, Init init, DType dtype) {
  check_registration(name);
  check_parameter_name(parameters_, name);
  Tensor value = Tensor::meta(shape, dtype, name);
  value.set_requires_grad(is_floating(dtype));
  parameters_.push_back(
      std::make_unique<ParamSlot>(ParamSlot{std::move(name), std::move(value), init, ShardSpec::whole(shape)}));
  return *parameters_.back();
}

ParamSlot& Module::register_tied(std::string name, const ParamSlot& other) {
  check_registration(name);
  check_parameter_name(parameters_, name);
  parameters_.push_back(
      std::make_unique<ParamSlot>(ParamSlot{std::move(name), other.value, other.init, other.shard, other.holds}));
  return *parameters_.back();
}

void Module::register_buffer(std::string name, Tensor buffer, bool persistent) {
  buffers_.push_back({std::move(name), std::move(buffer), persistent});
}

void Module::add_child(std::string name, std::shared_ptr<Module> child) {
  check_model(name.find('.') == std::string::npos && !name.empty(),
              "a module is registered as '{}'; give it a name of at least one character without dots", name);
  check_model(std::ranges::none_of(children_, [&](const auto& entry) { return entry.first == name; }),
              "a module registers two children as '{}', {} and {}; give each a name of its own", name,
              type_name_at(children_, name), child->type_name());
  children_.emplace_back(std::move(name), std::move(child));
}

void ModuleList::append(std::shared_ptr<Module> module) {
  register_module(std::to_string(children().size()), std::move(module));
}

Value ModuleList::forward(const Args&) {
  model_error("a ModuleList was called; it has no forward: call the modules in it");
}

}  // namespace loom::nn
