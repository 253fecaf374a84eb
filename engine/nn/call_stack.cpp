#include "engine/nn/call_stack.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/rank_context.h"

namespace loom::nn {
namespace {

struct CallStack {
  std::vector<Module*> running;  // outermost first
};

std::vector<Module*>* current_stack() {
  RankContext* context = RankContext::current_or_null();
  return context == nullptr ? nullptr : &context->slot<CallStack>().running;
}

std::optional<std::string> path_below(Module& root, const Module& module) {
  for (auto& [path, found] : root.named_modules()) {
    if (found == &module) return path;
  }
  return std::nullopt;
}

std::string words(Module& root, const Module& module) {
  const auto path = path_below(root, module);
  if (!path) return fmt::format("a {}", module.type_name());
  return path->empty() ? std::string(module.type_name()) : fmt::format("'{}' ({})", *path, module.type_name());
}

// The outermost module that a module was found below; kept with it, so that the tree is walked once.
struct Below {
  const Module* root = nullptr;
};

bool is_below(Module& root, Module& module) {
  if (&root == &module) return true;
  if (const auto known = module.attachment<Below>(); known != nullptr && known->root == &root) return true;
  if (!path_below(root, module)) return false;
  module.attach(std::make_shared<Below>(Below{&root}));
  return true;
}

bool has_trained_parameters(Module& module) {
  const auto& slots = module.own_parameters();
  return std::any_of(slots.begin(), slots.end(), [](const auto& slot) { return slot->value.requires_grad(); });
}

}  // namespace

std::optional<std::string> running_module() {
  const std::vector<Module*>* stack = current_stack();
  if (stack == nullptr || stack->empty()) return std::nullopt;
  return words(*stack->front(), *stack->back());
}

RunningCall::RunningCall(Module& module) : stack_(current_stack()) {
  if (stack_ != nullptr) stack_->push_back(&module);
}

RunningCall::~RunningCall() {
  if (stack_ != nullptr) stack_->pop_back();
}

void check_callable(Module& module) {
  const std::vector<Module*>* stack = current_stack();
  if (stack == nullptr || stack->empty() || module.own_parameters().empty()) return;
  Module& root = *stack->front();
  if (stack->size() > 1 && has_trained_parameters(module) && !is_below(root, module)) {
    config_error(
        "a {} with parameters of its own was called in the forward of {}, but is not part of {}: its parameters are "
        "not sharded, trained or saved; make it in the constructor and keep it with register_module()",
        module.type_name(), words(root, *(*stack)[stack->size() - 2]), root.type_name());
  }
  for (const auto& slot : module.own_parameters()) {
    if (!slot->value.is_meta()) continue;
    config_error(
        "parameter '{}' has no values in the forward of {}: initialise or load the weights before the first forward, "
        "and make modules in the constructor, not in forward",
        join_path(path_below(root, module).value_or(""), slot->name), words(root, module));
  }
}

}  // namespace loom::nn
