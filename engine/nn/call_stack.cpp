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

std::string running_forward() {
  const std::optional<std::string> module = running_module();
  return module ? fmt::format("the forward of {}", *module) : std::string{};
}

std::string words(Module& root, const Module& module) {
  const auto path = path_below(root, module);
  if (!path) return fmt::format("a {}", module.type_name());
  return path->empty() ? std::string(module.type_name()) : fmt::format("'{}' ({})", *path, module.type_name());
}

}  // namespace

std::optional<std::string> running_module() {
  const std::vector<Module*>* stack = current_stack();
  if (stack == nullptr || stack->empty()) return std::nullopt;
  return words(*stack->front(), *stack->back());
}

std::string CallSites::running() {
  const std::vector<Module*>* stack = current_stack();
  std::string text;
  if (stack == nullptr) return text;
  for (const Module* module : *stack) {
    if (!text.empty()) text += " > ";
    text += name_of(*stack->front(), *module);
  }
  return text;
}

const std::string& CallSites::name_of(Module& root, const Module& module) {
  if (const auto known = names_.find(&module); known != names_.end()) return known->second;
  for (auto& [path, found] : root.named_modules()) {
    const std::string type(found->type_name());
    names_.try_emplace(found, path.empty() ? type : fmt::format("{} ({})", path, type));
  }
  return names_.try_emplace(&module, module.type_name()).first->second;
}

RunningCall::RunningCall(Module& module) : stack_(current_stack()) {
  if (stack_ == nullptr) return;
  stack_->push_back(&module);
  RankContext::current().set_program_place(running_forward);
}

RunningCall::~RunningCall() {
  if (stack_ != nullptr) stack_->pop_back();
}

void check_callable(Module& module) {
  const auto& slots = module.own_parameters();
  const auto unwritten =
      std::find_if(slots.begin(), slots.end(), [](const auto& slot) { return slot->value.is_meta(); });
  const std::vector<Module*>* stack = current_stack();
  if (unwritten == slots.end() || stack == nullptr) return;
  Module& root = *stack->front();
  const auto path = path_below(root, module);
  if (!path) {
    config_error(
        "a {} without values was called in the forward of {}, but is not part of {}: its parameter '{}' would not be "
        "sharded, trained or saved; keep the module with register_module()",
        module.type_name(), words(root, *(*stack)[stack->size() - 2]), root.type_name(), (*unwritten)->name);
  }
  config_error(
      "parameter '{}' has no values in the forward of {}; initialise or load the weights before the first "
      "forward",
      join_path(*path, (*unwritten)->name), words(root, module));
}

void check_registration(std::string_view parameter) {
  const auto running = running_module();
  if (!running) return;
  config_error(
      "a module with a parameter '{}' was made in the forward of {}: it would not be sharded, trained or saved; make "
      "modules in the constructor and keep them with register_module()",
      parameter, *running);
}

}  // namespace loom::nn
