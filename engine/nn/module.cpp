#include "engine/nn/module.h"

#include <unordered_set>

#include "engine/core/error.h"
#include "engine/nn/call_stack.h"

namespace loom::nn {

std::string join_path(std::string_view prefix, std::string_view name) {
  if (prefix.empty()) return std::string(name);
  if (name.empty()) return std::string(prefix);
  return fmt::format("{}.{}", prefix, name);
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

Module* Module::find(std::string_view path) {
  Module* module = this;
  while (!path.empty()) {
    const std::size_t dot = path.find('.');
    const std::string_view name = path.substr(0, dot);
    Module* next = nullptr;
    for (auto& [child_name, child] : module->children_) {
      if (child_name == name) next = child.get();
    }
    if (next == nullptr) return nullptr;
    module = next;
    path = dot == std::string_view::npos ? std::string_view{} : path.substr(dot + 1);
  }
  return module;
}

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
  std::vector<std::pair<std::string, Module*>> found;
  std::unordered_set<Module*> seen;
  const std::function<void(std::string, Module&)> walk = [&](std::string path, Module& module) {
    if (!seen.insert(&module).second) return;
    found.emplace_back(path, &module);
    for (auto& [name, child] : module.children_) walk(join_path(path, name), *child);
  };
  walk("", *this);
  return found;
}

std::vector<std::pair<std::string, ParamSlot*>> Module::named_slots() {
  std::vector<std::pair<std::string, ParamSlot*>> found;
  for (auto& [path, module] : named_modules()) {
    for (auto& slot : module->parameters_) found.emplace_back(join_path(path, slot->name), slot.get());
  }
  return found;
}

std::vector<std::pair<std::string, Tensor>> Module::named_parameters() {
  std::vector<std::pair<std::string, Tensor>> found;
  std::unordered_set<const void*> seen;
  for (auto& [path, slot] : named_slots()) {
    if (seen.insert(slot->value.id()).second) found.emplace_back(path, slot->value);
  }
  return found;
}

std::vector<Tensor> Module::parameters() {
  std::vector<Tensor> found;
  for (auto& [path, tensor] : named_parameters()) found.push_back(tensor);
  return found;
}

std::int64_t Module::parameter_count() {
  std::int64_t count = 0;
  std::unordered_set<const void*> seen;
  for (auto& [path, slot] : named_slots()) {
    if (seen.insert(slot->value.id()).second) count += slot->global_shape.numel();
  }
  return count;
}

void Module::register_pre_hook(PreHook hook, bool prepend) {
  std::vector<PreHook>& hooks = call_layers_.back().pre_hooks;
  hooks.insert(prepend ? hooks.begin() : hooks.end(), std::move(hook));
}

void Module::register_post_hook(PostHook hook) { call_layers_.back().post_hooks.push_back(std::move(hook)); }

void Module::wrap_call(CallWrapper wrapper) { call_layers_.push_back({{}, {}, std::move(wrapper)}); }

ParamSlot& Module::register_parameter(std::string name, const Shape& shape, Init init, DType dtype) {
  check_registration(name);
  Tensor value = Tensor::meta(shape, dtype, name);
  value.set_requires_grad(is_floating(dtype));
  parameters_.push_back(std::make_unique<ParamSlot>(ParamSlot{std::move(name), std::move(value), init, shape, 0}));
  return *parameters_.back();
}

ParamSlot& Module::register_tied(std::string name, const ParamSlot& other) {
  check_registration(name);
  parameters_.push_back(
      std::make_unique<ParamSlot>(ParamSlot{std::move(name), other.value, other.init, other.global_shape, 0}));
  return *parameters_.back();
}

void Module::register_buffer(std::string name, Tensor buffer) {
  buffers_.emplace_back(std::move(name), std::move(buffer));
}

void Module::add_child(std::string name, std::shared_ptr<Module> child) {
  check_model(name.find('.') == std::string::npos && !name.empty(),
              "a module is registered as '{}'; give it a name of at least one character without dots", name);
  children_.emplace_back(std::move(name), std::move(child));
}

void ModuleList::append(std::shared_ptr<Module> module) {
  register_module(std::to_string(children().size()), std::move(module));
}

Value ModuleList::forward(const Args&) {
  model_error("a ModuleList was called; it has no forward: call the modules in it");
}

}  // namespace loom::nn
